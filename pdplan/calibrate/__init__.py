"""pdplan.calibrate"""
