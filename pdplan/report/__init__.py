"""pdplan.report"""
