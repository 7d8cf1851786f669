class TritonPythonModel:
    pass
