"""What results/ was measured with, from a checkout: python -m benchmarks.FOLDER.NAME --help

speed: how long work takes, beside peers and other commits. quality: whether vectors and answers are right. faults:
commands that are killed, threads that share. gpu: encoders on a GPU, and their code without one.
"""
