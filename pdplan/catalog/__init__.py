"""pdplan.catalog"""
