"""As newer versions have them: errors of requests that are no ValueError."""


class VLLMClientError(Exception):
    pass


class VLLMValidationError(VLLMClientError):
    pass
