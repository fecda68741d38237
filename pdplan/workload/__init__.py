"""pdplan.workload"""
