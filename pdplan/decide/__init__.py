"""pdplan.decide"""
