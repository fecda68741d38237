"""pdplan.export"""
