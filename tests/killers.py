"""An encoder whose process is killed by the word "poison", as by the kernel when memory runs out."""

import os
import signal

import numpy as np

from raycase.systems.case import Case, CaseConfig


class KilledCaseConfig(CaseConfig):
    """The configuration of `KilledCase`."""

    def load(self, **options):
        case = super().load(**options)
        return KilledCase(config=case.config, encoder=case.encoder)


class KilledCase(Case):
    """Dies of the word."""

    def encode_prepared(self, prepared):
        encoded = super().encode_prepared(prepared)
        if not np.isfinite(encoded.vectors).all():
            os.kill(os.getpid(), signal.SIGKILL)
        return encoded
