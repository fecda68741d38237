"""pdplan.perf"""
