"""pdplan.fleet"""
