"""train_steps*.safetensors: training steps with several models and optimizers, as a `train_step` of a Keras model does them.

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


def scaled(optimizer, loss):
    return optimizer.scale_loss(loss) if isinstance(optimizer, K.LossScaleOptimizer) else loss


# As Keras' JAX trainer does; with a loss scale, `apply` would leak tracers.
def apply(optimizer, gradients, variables):
    new, state = optimizer.stateless_apply([v.value for v in optimizer.variables], gradients, [v.value for v in variables])
    for variable, value in zip(variables + optimizer.variables, [*new, *state]):
        variable.assign(value)


# Each phase of the GAN: the discriminator first, then the generator, which sees the new discriminator.
def gan(name, optimizers, repeats, factor=1.0):
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
    each = keras.losses.BinaryCrossentropy(from_logits=True, reduction=None)

    # The factor is inside the mean, as in Phalanx: scaled losses overflow at the same place.
    def bce(target, logits):
        return ops.mean(each(target, logits) * factor)

    tensors = {f"start/{i}": np.asarray(v) for i, v in enumerate(g.weights + d.weights)}
    losses, scales = [], []

    def d_loss(d_trainable, d_other, g_trainable, g_other, real, z):
        fake, g_other = g.stateless_call(g_trainable, g_other, z, training=True)
        real_logits, d_other = d.stateless_call(d_trainable, d_other, real, training=True)
        fake_logits, d_other = d.stateless_call(d_trainable, d_other, fake, training=True)
        loss = bce(ops.ones((ROWS, 1)), real_logits) + bce(ops.zeros((ROWS, 1)), fake_logits)
        loss = loss + penalty(d, d_trainable)
        return scaled(d_optimizer, loss), (g_other, loss)

    def g_loss(g_trainable, g_other, d_trainable, d_other, z):
        fake, g_other = g.stateless_call(g_trainable, g_other, z, training=True)
        logits, _ = d.stateless_call(d_trainable, d_other, fake, training=True)
        loss = bce(ops.ones((ROWS, 1)), logits)
        return scaled(g_optimizer, loss), (g_other, loss)

    for step in range(STEPS):
        real, z1, z2 = normal(rng, ROWS, 5), normal(rng, ROWS, 3), normal(rng, ROWS, 3)
        tensors |= {f"real/{step}": real, f"z1/{step}": z1, f"z2/{step}": z2}
        of_step = []
        for _ in range(repeats):
            (gt, go), (dt, do) = variables(g), variables(d)
            gradient, (go, loss) = jax.grad(d_loss, has_aux=True)(dt, do, gt, go, real, z1)
            assign(g, gt, go)
            apply(d_optimizer, gradient, d.trainable_variables)
            of_step.append(float(loss))
        (gt, go), (dt, do) = variables(g), variables(d)
        gradient, (go, loss) = jax.grad(g_loss, has_aux=True)(gt, go, dt, do, z2)
        assign(g, gt, go)
        apply(g_optimizer, gradient, g.trainable_variables)
        of_step.append(float(loss))
        losses.append(of_step)
        scales.append([float(o.dynamic_scale) for o in optimizers if isinstance(o, K.LossScaleOptimizer)])
        if step == 0:
            tensors |= {f"first/{i}": np.asarray(v) for i, v in enumerate(g.weights + d.weights)}
    tensors["losses"] = np.array(losses, np.float32)
    tensors["scales"] = np.array(scales, np.float32)
    tensors |= {f"after/{i}": np.asarray(v) for i, v in enumerate(g.weights + d.weights)}
    # What `fit` leaves in the weights: the moving averages, if an optimizer keeps them.
    for optimizer, model in ((d_optimizer, d), (g_optimizer, g)):
        getattr(optimizer, "inner_optimizer", optimizer).finalize_variable_values(model.trainable_variables)
    tensors |= {f"final/{i}": np.asarray(v) for i, v in enumerate(g.weights + d.weights)}
    described = [keras.optimizers.serialize(o) for o in optimizers]
    described = [{"class_name": o["class_name"], "config": o["config"]} for o in described]
    return {"name": name, "steps": STEPS, "repeats": repeats, "factor": factor, "optimizers": described}, tensors


# The divergence of a normal distribution from the standard one, which the layer adds to the loss.
class Divergence(L.Layer):
    def call(self, inputs):
        mean, log_variance = inputs
        each = 0.5 * (ops.exp(log_variance) + mean**2 - 1.0 - log_variance)
        self.add_loss(0.1 * ops.mean(ops.sum(each, axis=-1)))
        return mean


def encoder():
    x = keras.Input((5,))
    hidden = L.Dense(4, activation="tanh", activity_regularizer="l2", name="hidden")(x)
    log_variance = L.Dense(2, name="log_variance")(hidden)
    mean = Divergence(name="divergence")([L.Dense(2, name="mean")(hidden), log_variance])
    return keras.Model(x, [mean, log_variance], name="encoder")


def decoder():
    chain = [L.Dense(4, activation="relu", kernel_regularizer="l1"), L.Dense(5, activity_regularizer="l1")]
    return keras.Sequential([keras.Input((2,)), *chain], name="decoder")


# A variational autoencoder: one phase trains both models with all losses that layers add. If there is a second optimizer,
# a second phase trains the decoder alone on given codes, with what the decoder adds.
def vae(name, optimizers):
    keras.utils.set_random_seed(4)
    rng = rng_for(name)
    e, d = encoder(), decoder()
    for model in (e, d):
        for variable in model.variables:
            variable.assign(normal(rng, *variable.shape) * 0.4)
    optimizers[0].build(e.trainable_variables + d.trainable_variables)
    for optimizer in optimizers[1:]:
        optimizer.build(d.trainable_variables)
    mse = keras.losses.MeanSquaredError()
    tensors = {f"start/{i}": np.asarray(v) for i, v in enumerate(e.weights + d.weights)}

    def both(trainable, x, noise):
        of_e, of_d = trainable[: len(e.trainable_variables)], trainable[len(e.trainable_variables) :]
        (mean, log_variance), _, from_e = e.stateless_call(of_e, [], x, training=True, return_losses=True)
        y, _, from_d = d.stateless_call(of_d, [], mean + ops.exp(0.5 * log_variance) * noise, training=True, return_losses=True)
        return mse(x, y) + sum(from_e) + sum(from_d)

    def alone(trainable, x, code):
        y, _, from_d = d.stateless_call(trainable, [], code, training=True, return_losses=True)
        return mse(x, y) + sum(from_d)

    losses = []
    for step in range(STEPS):
        x, noise, code = normal(rng, ROWS, 5), normal(rng, ROWS, 2), normal(rng, ROWS, 2)
        tensors |= {f"x/{step}": x, f"noise/{step}": noise, f"code/{step}": code}
        of_step = []
        values = [v.value for v in e.trainable_variables + d.trainable_variables]
        loss, gradient = jax.value_and_grad(both)(values, x, noise)
        optimizers[0].apply(gradient)
        of_step.append(float(loss))
        for optimizer in optimizers[1:]:
            loss, gradient = jax.value_and_grad(alone)([v.value for v in d.trainable_variables], x, code)
            optimizer.apply(gradient)
            of_step.append(float(loss))
        losses.append(of_step)
    tensors["losses"] = np.array(losses, np.float32)
    tensors |= {f"after/{i}": np.asarray(v) for i, v in enumerate(e.weights + d.weights)}
    described = [keras.optimizers.serialize(o) for o in optimizers]
    described = [{"class_name": o["class_name"], "config": o["config"]} for o in described]
    return {"name": name, "steps": STEPS, "optimizers": described}, tensors


def critic():
    chain = [L.Conv1D(4, 3, padding="same", activation="tanh"), L.Flatten(), L.Dense(6, activation="softplus"), L.Dense(1)]
    return keras.Sequential([keras.Input((5, 2)), *chain], name="critic")


# A Wasserstein critic: the penalty contains the derivative of the critic by its input.
def wgan(name, optimizer):
    keras.utils.set_random_seed(5)
    rng = rng_for(name)
    c = critic()
    for variable in c.variables:
        variable.assign(normal(rng, *variable.shape) * 0.5)
    optimizer.build(c.trainable_variables)
    tensors = {f"start/{i}": np.asarray(v) for i, v in enumerate(c.weights)}

    def call(trainable, x):
        return c.stateless_call(trainable, [], x, training=True)[0]

    def loss_of(trainable, real, fake, share):
        share = share[:, :, None]
        mixed = share * real + (1.0 - share) * fake
        gradient = jax.grad(lambda x: ops.sum(call(trainable, x)))(mixed)
        norm = ops.sqrt(ops.sum(gradient**2, axis=(1, 2)))
        return ops.mean(call(trainable, fake) - call(trainable, real)) + 10.0 * ops.mean((norm - 1.0) ** 2)

    losses = []
    for step in range(STEPS):
        real, fake, share = normal(rng, ROWS, 5, 2), normal(rng, ROWS, 5, 2), np.abs(normal(rng, ROWS, 1)) % 1
        tensors |= {f"real/{step}": real, f"fake/{step}": fake, f"share/{step}": share}
        values = [v.value for v in c.trainable_variables]
        loss, gradient = jax.value_and_grad(loss_of)(values, real, fake, share)
        apply(optimizer, gradient, c.trainable_variables)
        losses.append(float(loss))
    tensors["losses"] = np.array(losses, np.float32)
    tensors |= {f"after/{i}": np.asarray(v) for i, v in enumerate(c.weights)}
    described = keras.optimizers.serialize(optimizer)
    described = [{"class_name": described["class_name"], "config": described["config"]}]
    return {"name": name, "steps": STEPS, "optimizers": described}, tensors


# Padded sequences of tokens: the mask of the encoder's output counts in its loss, and reaches the second model. The tracers of
# JAX's derivatives lose masks, so these models take them as inputs; `check` compares them with models that make masks.
def masked(name, optimizers):
    keras.utils.set_random_seed(6)
    rng = rng_for(name)
    tokens, mask, sequence = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="bool"), keras.Input((5, 3))
    embedding, memory = L.Embedding(9, 4, mask_zero=True), L.LSTM(3, return_sequences=True)
    reader, top = L.GRU(4), L.Dense(2)
    e = keras.Model([tokens, mask], memory(L.Identity()(embedding(tokens)), mask=mask))
    h = keras.Model([sequence, mask], top(reader(sequence, mask=mask)))
    check = keras.Model(tokens, top(reader(memory(embedding(tokens)))))
    for variable in check.variables:
        variable.assign(normal(rng, *variable.shape) * 0.6)
    both = e.trainable_variables + h.trainable_variables
    optimizers[0].build(e.trainable_variables)
    optimizers[1].build(both)
    mae = keras.metrics.MeanAbsoluteError()
    tensors = {f"start/{i}": np.asarray(v) for i, v in enumerate(e.weights + h.weights)}

    def call(model, trainable, x, mask):
        return model.stateless_call(trainable, [v.value for v in model.non_trainable_variables], [x, mask], training=True)[0]

    # What a loss does with the mask of its predictions.
    def mse(target, value, mask=None):
        each = keras.losses.mean_squared_error(target, value)
        return keras.src.losses.loss.reduce_weighted_values(each, mask=mask, reduction="sum_over_batch_size")

    def of_encoder(trainable, ids, mask, target, y):
        return mse(target, call(e, trainable, ids, mask), mask)

    def of_both(trainable, ids, mask, target, y):
        coded = call(e, trainable[: len(e.trainable_variables)], ids, mask)
        out = call(h, trainable[len(e.trainable_variables) :], coded, mask)
        return mse(y, out) + mse(target, coded, mask)

    losses, metrics = [], []
    for step in range(STEPS):
        ids = rng.integers(1, 9, (ROWS, 5)).astype("int32")
        # One row is full, and the last one has a single token.
        for row, length in enumerate([5, 3, 2, 4, 2, 1]):
            ids[row, length:] = 0
        target, y = normal(rng, ROWS, 5, 3), normal(rng, ROWS, 2)
        tensors |= {f"tokens/{step}": ids, f"target/{step}": target, f"y/{step}": y}
        batch = ids, ids != 0, target, y
        assert np.allclose(check(ids), h([np.asarray(e([ids, ids != 0])), ids != 0]), atol=1e-6)
        coded = memory(embedding(ids))
        assert np.isclose(keras.losses.MeanSquaredError()(target, coded), of_encoder(e.trainable_variables, *batch))
        mae.reset_state()
        mae.update_state(target, coded)
        metrics.append(float(mae.result()))
        of_step = []
        for loss_of, optimizer, variables in ((of_encoder, optimizers[0], e.trainable_variables), (of_both, optimizers[1], both)):
            loss, gradient = jax.value_and_grad(loss_of)([v.value for v in variables], *batch)
            optimizer.apply(gradient)
            of_step.append(float(loss))
        losses.append(of_step)
    tensors["losses"], tensors["metrics"] = np.array(losses, np.float32), np.array(metrics, np.float32)
    tensors |= {f"after/{i}": np.asarray(v) for i, v in enumerate(e.weights + h.weights)}
    described = [keras.optimizers.serialize(o) for o in optimizers]
    described = [{"class_name": o["class_name"], "config": o["config"]} for o in described]
    return {"name": name, "steps": STEPS, "optimizers": described}, tensors


# A student that learns from a teacher, and is evaluated on labels.
class Distiller(keras.Model):
    def __init__(self, student, taught):
        super().__init__()
        self.student, self.taught = student, taught
        self.loss_mean = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.apart = keras.metrics.Mean(name="apart")

    @property
    def metrics(self):
        return [self.loss_mean, self.accuracy, self.apart]

    def call(self, x, training=False):
        return self.student(x, training=training)

    def train_step(self, state, data):
        trainable, other, optimizer, metrics = state
        x = data[0]

        def loss_of(trainable, other):
            y, other = self.stateless_call(trainable, other, x, training=True)
            loss = ops.mean((self.taught(x) - y) ** 2)
            return loss, other

        (loss, other), gradient = jax.value_and_grad(loss_of, has_aux=True)(trainable, other)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradient, trainable)
        return {"loss": loss}, (trainable, other, optimizer, metrics)

    def test_step(self, state, data):
        trainable, other, metrics = state
        x, labels = data
        y, other = self.stateless_call(trainable, other, x, training=False)
        each = keras.losses.sparse_categorical_crossentropy(labels, y, from_logits=True)
        apart = ops.mean(ops.abs(self.taught(x) - y), axis=-1)
        updates = ((self.loss_mean, (each,)), (self.accuracy, (labels, y)), (self.apart, (apart,)))
        new, logs = [], {}
        for metric, arguments in updates:
            count = len(metric.variables)
            own = metric.stateless_update_state(metrics[len(new) : len(new) + count], *arguments)
            new += own
            logs[metric.name] = metric.stateless_result(own)
        return logs, (trainable, other, new)


def distiller(name):
    keras.utils.set_random_seed(7)
    rng = rng_for(name)
    student = keras.Sequential([keras.Input((4,)), L.Dense(5, activation="tanh"), L.Dropout(0.5), L.Dense(3)], name="student")
    teacher = keras.Sequential([keras.Input((4,)), L.Dense(6, activation="relu"), L.Dense(3)], name="teacher")
    # `evaluate` takes the values of all variables that the model has out of them, so the teacher is a function of its own.
    model = Distiller(student, lambda x: teacher.stateless_call([v.value for v in teacher.variables], [], x)[0])
    for variable in student.trainable_variables + teacher.weights:
        variable.assign(normal(rng, *variable.shape) * 0.7)
    model.compile(K.SGD(0.1))
    x, labels = normal(rng, 10, 4), rng.integers(0, 3, 10).astype("int32")
    model.build((None, 4))
    logs = model.evaluate(x, labels, batch_size=4, verbose=0, return_dict=True)
    tensors = {f"start/{i}": np.asarray(v) for i, v in enumerate(student.trainable_variables + teacher.weights)}
    tensors |= {"x": x, "labels": labels, "result": np.array([float(v) for v in logs.values()], np.float32)}
    return {"name": name, "names": list(logs)}, tensors


def make():
    fixture = Fixture("train_steps_masks")
    fixture.add(*masked("masked", [K.Adam(0.03), K.SGD(0.2, momentum=0.9)]))
    fixture.save()
    fixture = Fixture("train_steps_test")
    fixture.add(*distiller("distiller"))
    fixture.save()
    fixture = Fixture("train_steps")
    decay = K.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)
    fixture.add(*gan("gan", (K.Adam(0.02, beta_1=0.5), K.Adam(0.01, beta_1=0.5)), 1))
    fixture.add(*gan("gan_clipped", (K.SGD(0.1, momentum=0.9, global_clipnorm=0.5), K.RMSprop(0.01)), 1))
    fixture.add(*gan("gan_decayed", (K.AdamW(decay, weight_decay=0.05, clipnorm=0.3), K.Lion(0.01)), 1))
    fixture.add(*gan("gan_critic_twice", (K.Nadam(0.02), K.Adagrad(0.05)), 2))
    averaged = K.Adam(0.05, use_ema=True, ema_momentum=0.8)
    overwritten = K.SGD(0.1, momentum=0.5, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3)
    fixture.add(*gan("gan_averaged", (overwritten, averaged), 1))
    both = K.Adam(0.05, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.6)
    fixture.add(*gan("gan_accumulated", (both, K.RMSprop(0.01, gradient_accumulation_steps=2)), 1))
    decay = K.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)
    # With an update in the last call: Keras also averages in calls that only accumulate, Phalanx does not.
    both = K.Adam(decay, gradient_accumulation_steps=4, clipvalue=0.05, use_ema=True, ema_momentum=0.6)
    fixture.add(*gan("gan_critic_accumulated", (both, K.Adam(0.01)), 2))
    # Updates of the discriminator overflow and are skipped; its scale grows again.
    decay = K.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)
    scaled = [K.Adam(decay, use_ema=True, ema_momentum=0.6), K.Adam(0.01)]
    scaled = [K.LossScaleOptimizer(o, initial_scale=2.0**s, dynamic_growth_steps=2) for o, s in zip(scaled, (125, 10))]
    fixture.add(*gan("gan_scaled", scaled, 2, 64.0))
    scaled = [K.Lamb(0.02, gradient_accumulation_steps=2), K.Adafactor(0.05)]
    scaled = [K.LossScaleOptimizer(o, initial_scale=2.0**s, dynamic_growth_steps=3) for o, s in zip(scaled, (121, 10))]
    fixture.add(*gan("gan_whole_weights", scaled, 1, 64.0))
    fixture.save()
    fixture = Fixture("train_steps_vae")
    fixture.add(*vae("vae", [K.Adam(0.02)]))
    fixture.add(*vae("vae_two_phases", [K.Adam(0.02), K.SGD(0.05, momentum=0.9)]))
    fixture.save()
    fixture = Fixture("train_steps_wgan")
    fixture.add(*wgan("wgan", K.Adam(0.01, beta_1=0.5)))
    fixture.add(*wgan("wgan_whole_weights", K.Lamb(0.02)))
    fixture.save()
