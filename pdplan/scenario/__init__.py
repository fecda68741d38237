"""pdplan.scenario"""
