"""layers.safetensors: outputs, gradients and state updates of single layers."""

import inspect

import jax
import numpy as np
from common import Fixture, config_of, normal, rng_for
from layer_cases import all_cases
from keras import layers as L


def random_inputs(rng, layer, shapes):
    if isinstance(layer, L.Embedding):
        return [rng.integers(0, layer.input_dim, shape).astype("int32") for shape in shapes]
    # Activations with kinks far from zero (relu6, hard_sigmoid) need values on both sides of them.
    spread = 3.0 if isinstance(layer, L.Activation) else 1.0
    return [normal(rng, *shape) * np.float32(spread) for shape in shapes]


def random_weight(rng, weight):
    if "variance" in weight.name:
        return rng.uniform(0.5, 2.0, weight.shape).astype("float32")
    if weight.name == "gamma":
        return 1 + normal(rng, *weight.shape) * np.float32(0.3)
    return normal(rng, *weight.shape) * np.float32(0.5)


def weights_of(layer):
    """The weights, each once. Keras lists the kernel of a wrapped layer before the wrapper's own weights."""
    if isinstance(layer, L.SpectralNormalization):
        return [*layer.layer.weights, layer.vector_u]
    return layer.weights


def run(layer, inputs, seed, training):
    """Output, gradients of sum(output * seed) and the weights after one call."""
    takes_training = "training" in inspect.signature(layer.call).parameters
    options = {"training": training} if takes_training else {}
    trainable = [v.value for v in layer.trainable_variables]
    state = [v.value for v in layer.non_trainable_variables]
    differentiable = [x.dtype == np.float32 for x in inputs]

    def forward(trainable, floats):
        floats = iter(floats)
        full = [next(floats) if real else x for real, x in zip(differentiable, inputs)]
        output, new_state = layer.stateless_call(trainable, state, full if len(full) > 1 else full[0], **options)
        return (output * seed).sum(), (output, new_state)

    floats = [x for x, real in zip(inputs, differentiable) if real]
    gradient = jax.jit(jax.value_and_grad(forward, argnums=(0, 1), has_aux=True))
    (_, (output, new_state)), (grad_weights, grad_inputs) = gradient(trainable, floats)
    return output, new_state, grad_weights, grad_inputs


def add_case(fixture, spec):
    name, shapes, training = spec["name"], spec["shapes"], spec["training"]
    rng = rng_for(name)
    layer = spec["layer"](name=name, **spec["kwargs"])
    layer.build(shapes if len(shapes) > 1 else shapes[0])
    for weight in weights_of(layer):
        weight.assign(random_weight(rng, weight))
    inputs = random_inputs(rng, layer, shapes)
    output_shape = layer(inputs if len(inputs) > 1 else inputs[0]).shape
    if spec["kwargs"].get("activation") == "glu":
        # Keras' layer does not know that the function halves the last axis.
        output_shape = (*output_shape[:-1], output_shape[-1] // 2)
    seed = normal(rng, *output_shape)
    tensors = {f"input/{i}": x for i, x in enumerate(inputs)}
    tensors |= {f"weight/{i}": w.numpy() for i, w in enumerate(weights_of(layer))}

    output, new_state, grad_weights, grad_inputs = run(layer, inputs, seed, training)
    assert output.shape == seed.shape, (name, output.shape, seed.shape)
    tensors |= {"output": output, "seed": seed}
    tensors |= {f"grad_input/{i}": g for i, g in enumerate(grad_inputs)}
    index = {id(w): i for i, w in enumerate(weights_of(layer))}
    for variable, grad in zip(layer.trainable_variables, grad_weights):
        tensors[f"grad_weight/{index[id(variable)]}"] = grad
    updates = training and isinstance(layer, L.BatchNormalization)
    if updates or (training and isinstance(layer, L.SpectralNormalization)):
        for variable, value in zip(layer.non_trainable_variables, new_state):
            tensors[f"new_weight/{index[id(variable)]}"] = value
    trainable = {id(w) for w in layer.trainable_variables}
    fixture.add(
        {
            "name": name,
            "class_name": type(layer).__name__,
            "config": config_of(layer),
            "training": training,
            "input_count": len(inputs),
            "weight_names": [w.name for w in weights_of(layer)],
            "weight_trainable": [id(w) in trainable for w in weights_of(layer)],
            "has_grads": bool(grad_inputs or grad_weights),
            "updates": updates,
        },
        tensors,
    )


def make(group="layers", cases=None):
    fixture = Fixture(group)
    for spec in all_cases() if cases is None else cases:
        add_case(fixture, spec)
    fixture.save()
