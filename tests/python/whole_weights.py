"""whole_weights.safetensors: as optimizers.safetensors, for optimizers that need norms, means or products of whole
weights, or have a formula for each weight."""

from common import Fixture, config_of
from keras import optimizers as K
from optimizers import COMMON_OPTIONS, add


def cases():
    yield "lamb", K.Lamb, {}
    yield "lamb_options", K.Lamb, {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3, "weight_decay": 0.1}
    yield "adafactor", K.Adafactor, {}
    yield "adafactor_options", K.Adafactor, {
        "learning_rate": 0.05,
        "beta_2_decay": -0.5,
        "epsilon_1": 1e-10,
        "epsilon_2": 1.5,
        "clip_threshold": 0.5,
        "relative_step": False,
        "weight_decay": 0.1,
    }
    yield "muon", K.Muon, {}
    yield "muon_options", K.Muon, {
        "learning_rate": 0.05,
        "adam_beta_1": 0.8,
        "adam_beta_2": 0.95,
        "adam_weight_decay": 0.2,
        "weight_decay": 0.1,
        "epsilon": 1e-3,
        "muon_a": 3.0,
        "muon_b": -4.0,
        "muon_c": 1.5,
        "adam_lr_ratio": 0.5,
        "momentum": 0.8,
        "ns_steps": 3,
        "nesterov": False,
        "rms_rate": None,
    }
    yield "muon_excluded", K.Muon, {"learning_rate": 0.05, "exclude_layers": ["nothing", "kern.l$"], "weight_decay": None}
    for short, cls in (("lamb", K.Lamb), ("adafactor", K.Adafactor), ("muon", K.Muon)):
        for suffix, options in COMMON_OPTIONS.items():
            yield f"{short}_{suffix}", cls, {"learning_rate": 0.1} | options


def joined():
    decay = K.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    every = K.OptimizerMap
    yield "multi", every(K.SGD(0.1, momentum=0.9), {".*kernel": K.Adam(0.05, weight_decay=0.1)})
    yield "multi_clipped", every(K.Nadam(0.05, global_clipnorm=1.0), {".*bias": K.Adagrad(decay, clipnorm=0.5)})
    yield "multi_default", every(K.Lamb(0.05, clipvalue=0.5))
    yield "multi_whole", every(K.Muon(0.05), {"(.*/)?bias": K.ScheduleFreeAdamW(0.05)})
    yield "multi_accumulate", every(
        K.RMSprop(0.01, centered=True, gradient_accumulation_steps=3),
        {".*kernel": K.Adafactor(0.05, gradient_accumulation_steps=3)},
    )


def make():
    fixture = Fixture("whole_weights")
    names = ("kernel", "bias")
    for name, cls, kwargs in cases():
        optimizer = cls(name=cls.__name__.lower(), **kwargs)
        add(fixture, name, optimizer, config_of(optimizer), names)
    for name, optimizer_map in joined():
        optimizer = K.MultiOptimizer(optimizer_map, name="multi_optimizer")
        add(fixture, name, optimizer, config_of(optimizer), names)
    fixture.save()
