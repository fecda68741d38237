"""pdplan.simulate"""
