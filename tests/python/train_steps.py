"""train_steps.safetensors: training steps with several models and optimizers, as a `train_step` of a Keras model does them.

Each case has the losses of every step and all weights after the last one. Random inputs are given as data, so that
Phalanx can take the same."""

import jax
import keras
import numpy as np
from common import Fixture, normal, rng_for
from keras import layers as L
from keras import ops
from keras import optimizers as K

STEPS = 4
ROWS = 6


def generator():
    chain = [L.Dense(6, use_bias=False), L.BatchNormalization(momentum=0.8), L.Activation("relu"), L.Dense(5, activation="tanh")]
    return keras.Sequential([keras.Input((3,)), *chain], name="generator")


def discriminator():
    chain = [L.Dense(7, activation="tanh", kernel_regularizer="l2"), L.Dense(1, bias_constraint="non_neg")]
    return keras.Sequential([keras.Input((5,)), *chain], name="discriminator")


def variables(model):
    return [[v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]]


def assign(model, trainable, other):
    for variable, value in zip(model.trainable_variables + model.non_trainable_variables, [*trainable, *other]):
        variable.assign(value)


def penalty(model, trainable):
    total = 0.0
    for variable, value in zip(model.trainable_variables, trainable):
        if variable.regularizer is not None:
            total = total + variable.regularizer(value)
    return total


# Each phase of the GAN: the discriminator first, then the generator, which sees the new discriminator.
def gan(name, optimizers, repeats):
    keras.utils.set_random_seed(3)
    rng = rng_for(name)
    g, d = generator(), discriminator()
    for model in (g, d):
        for variable in model.variables:
            if "moving" not in variable.path and "bias" not in variable.path:
                variable.assign(normal(rng, *variable.shape) * 0.5 + (1.0 if "gamma" in variable.path else 0.0))
    d_optimizer, g_optimizer = optimizers
    d_optimizer.build(d.trainable_variables)
    g_optimizer.build(g.trainable_variables)
    bce = keras.losses.BinaryCrossentropy(from_logits=True)
    tensors = {f"start/{i}": np.asarray(v) for i, v in enumerate(g.weights + d.weights)}
    losses = []

    def d_loss(d_trainable, d_other, g_trainable, g_other, real, z):
        fake, g_other = g.stateless_call(g_trainable, g_other, z, training=True)
        real_logits, d_other = d.stateless_call(d_trainable, d_other, real, training=True)
        fake_logits, d_other = d.stateless_call(d_trainable, d_other, fake, training=True)
        loss = bce(ops.ones((ROWS, 1)), real_logits) + bce(ops.zeros((ROWS, 1)), fake_logits)
        return loss + penalty(d, d_trainable), (g_other, loss)

    def g_loss(g_trainable, g_other, d_trainable, d_other, z):
        fake, g_other = g.stateless_call(g_trainable, g_other, z, training=True)
        logits, _ = d.stateless_call(d_trainable, d_other, fake, training=True)
        loss = bce(ops.ones((ROWS, 1)), logits)
        return loss, (g_other, loss)

    for step in range(STEPS):
        real, z1, z2 = normal(rng, ROWS, 5), normal(rng, ROWS, 3), normal(rng, ROWS, 3)
        tensors |= {f"real/{step}": real, f"z1/{step}": z1, f"z2/{step}": z2}
        of_step = []
        for _ in range(repeats):
            (gt, go), (dt, do) = variables(g), variables(d)
            gradient, (go, loss) = jax.grad(d_loss, has_aux=True)(dt, do, gt, go, real, z1)
            assign(g, gt, go)
            d_optimizer.apply(gradient)
            of_step.append(float(loss))
        (gt, go), (dt, do) = variables(g), variables(d)
        gradient, (go, loss) = jax.grad(g_loss, has_aux=True)(gt, go, dt, do, z2)
        assign(g, gt, go)
        g_optimizer.apply(gradient)
        of_step.append(float(loss))
        losses.append(of_step)
        if step == 0:
            tensors |= {f"first/{i}": np.asarray(v) for i, v in enumerate(g.weights + d.weights)}
    tensors["losses"] = np.array(losses, np.float32)
    tensors |= {f"after/{i}": np.asarray(v) for i, v in enumerate(g.weights + d.weights)}
    described = [keras.optimizers.serialize(o) for o in optimizers]
    described = [{"class_name": o["class_name"], "config": o["config"]} for o in described]
    return {"name": name, "steps": STEPS, "repeats": repeats, "optimizers": described}, tensors


def make():
    fixture = Fixture("train_steps")
    decay = K.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)
    fixture.add(*gan("gan", (K.Adam(0.02, beta_1=0.5), K.Adam(0.01, beta_1=0.5)), 1))
    fixture.add(*gan("gan_clipped", (K.SGD(0.1, momentum=0.9, global_clipnorm=0.5), K.RMSprop(0.01)), 1))
    fixture.add(*gan("gan_decayed", (K.AdamW(decay, weight_decay=0.05, clipnorm=0.3), K.Lion(0.01)), 1))
    fixture.add(*gan("gan_critic_twice", (K.Nadam(0.02), K.Adagrad(0.05)), 2))
    fixture.save()
