"""pdplan.serving"""
