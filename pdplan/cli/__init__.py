"""pdplan.cli"""
