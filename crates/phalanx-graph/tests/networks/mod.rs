//! Small networks as complete training steps: MLPs, one of them with branches, and a CNN. The tests of the
//! passes print them; the tests of the executors run them.

use phalanx_graph::autodiff::gradients;
use phalanx_graph::functions::layout::iota;
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::ops::{
    BatchNormAttrs, Binary, Epilogue, LayerNormAttrs, PoolKind, RecurrentAttrs, RecurrentCell,
    Unary,
};
use phalanx_graph::passes::fuse_epilogues;
use phalanx_graph::update::{Clip, RuleBuilder, Slot, SlotInit, UpdateRule};
use phalanx_graph::{
    ConvGeom, DType, Fetch, Gradient, Graph, NodeId, Op, Padding, ParamId, Scope, Space, Step,
    Type, Window,
};

/// `m = 0.9 m - rate g`, `w = w + m`; the rate is a scalar of the step.
pub fn momentum(clip: Option<Clip>) -> UpdateRule {
    let slot = Slot { name: "momentum".into(), init: SlotInit::Value(0.0) };
    let mut r = RuleBuilder::new(vec![slot], 1);
    let delta = r.mul(r.scalar(0), r.gradient());
    let decayed = r.scale(r.slot(0), 0.9);
    let m = r.sub(decayed, delta);
    let w = r.add(r.weight(), m);
    r.finish("momentum", clip, w, &[m])
}

/// Adam; the rate, which includes the bias correction, is a scalar of the step.
pub fn adam(clip: Option<Clip>) -> UpdateRule {
    let slot = |name: &str| Slot { name: name.into(), init: SlotInit::Value(0.0) };
    let mut r = RuleBuilder::new(vec![slot("m"), slot("v")], 1);
    let m = r.blend(0.9, r.slot(0), r.gradient());
    let square = r.unary(Unary::Square, r.gradient());
    let v = r.blend(0.99, r.slot(1), square);
    let root = r.unary(Unary::Sqrt, v);
    let epsilon = r.constant(1e-2);
    let divisor = r.add(root, epsilon);
    let step = r.div(m, divisor);
    let step = r.mul(r.scalar(0), step);
    let w = r.sub(r.weight(), step);
    r.finish("adam", clip, w, &[m, v])
}

/// A graph under construction; shapes match by design.
struct Net {
    g: Graph,
    assigns: Vec<(ParamId, NodeId)>,
    scope: Scope,
    /// Steps after which the loss scale grows, if the loss is scaled.
    growth_steps: Option<u32>,
}

impl Net {
    fn new(scope: Scope) -> Net {
        Net { g: Graph::new(), assigns: vec![], scope, growth_steps: None }
    }

    fn push(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        self.g.push(op, inputs).expect("fits")
    }

    fn feed(&mut self, name: &str, ty: Type) -> NodeId {
        let id = self.g.add_feed(name, ty);
        self.g.feed(id)
    }

    fn param(&mut self, name: &str, dims: &[usize]) -> NodeId {
        let id = self.g.add_param(name, dims, true);
        self.g.param(id)
    }

    fn relu(&mut self, x: NodeId) -> NodeId {
        self.g.relu(x).expect("fits")
    }

    fn biased(&mut self, y: NodeId, name: &str) -> NodeId {
        let width = self.g.ty(y).last();
        let bias = self.param(&format!("{name}/bias"), &[width]);
        self.g.add(y, bias).expect("fits")
    }

    fn dense(&mut self, name: &str, x: NodeId, units: usize) -> NodeId {
        self.g.enter(name);
        let width = self.g.ty(x).last();
        let w = self.param(&format!("{name}/kernel"), &[width, units]);
        let y = self.push(Op::Dot(Epilogue::default()), &[x, w]);
        self.biased(y, name)
    }

    fn conv(
        &mut self,
        name: &str,
        x: NodeId,
        filters: usize,
        kernel: usize,
        stride: usize,
    ) -> NodeId {
        self.g.enter(name);
        let dims = self.g.ty(x).dims.clone();
        let input = [dims[0], dims[1], dims[2]];
        let (kernel, stride) = ([kernel; 2], [stride; 2]);
        let geom = ConvGeom::new(input, filters, Window::new(kernel, stride, Padding::Same));
        let geom = geom.expect("fits");
        let w = self.param(&format!("{name}/kernel"), &geom.kernel_dims());
        self.push(Op::Conv(geom, Epilogue::default()), &[x, w])
    }

    /// Batch normalisation with its moving statistics, `[2, channels]`.
    fn batch_norm(&mut self, name: &str, x: NodeId) -> NodeId {
        self.g.enter(name);
        let scope = self.scope;
        let ty = self.g.ty(x).clone();
        let channels = ty.last();
        let gamma = self.param(&format!("{name}/gamma"), &[channels]);
        let beta = self.param(&format!("{name}/beta"), &[channels]);
        let moving = self.g.add_param(&format!("{name}/moving"), &[2, channels], false);
        let sums = self.push(Op::Moments, &[x]);
        let sums = self.push(Op::AllReduce { scope }, &[sums]);
        let positions = ty.len() / channels;
        let stats = self.push(Op::BatchStats { scope, positions }, &[sums]);
        let mean_stats = match scope {
            Scope::All => stats,
            Scope::Device => self.push(Op::ReplicaMean, &[stats]),
        };
        let old = self.g.param(moving);
        let decayed = self.g.scale(old, 0.9).expect("fits");
        let new = self.g.scale(mean_stats, 0.1).expect("fits");
        let updated = self.g.add(decayed, new).expect("fits");
        self.assigns.push((moving, updated));
        let attrs = BatchNormAttrs { epsilon: 1e-2.into(), relu: false, scope };
        self.push(Op::BatchNorm(attrs), &[x, stats, gamma, beta])
    }

    /// Adds loss, gradients and update. Feeds: those of the network, `label`, `weight` and `scale`. The loss
    /// is `scale · Σ weight · crossentropy`, and `penalty` applies to kernels.
    fn train(mut self, name: &str, logits: NodeId, rule: UpdateRule, penalty: (f32, f32)) -> Step {
        self.g.enter("loss");
        let label = self.feed("label", Type::new(DType::I32, Space::Rows, []));
        let weight = self.feed("weight", Type::rows([]));
        let scale = self.feed("scale", Type::mirrored([]));
        let sample = self.push(Op::SparseXent, &[logits, label]);
        let weighted = self.g.mul(sample, weight).expect("fits");
        let sum = self.push(Op::SumRows, &[weighted]);
        let sum = self.push(Op::AllReduce { scope: Scope::All }, &[sum]);
        let loss = self.g.mul(sum, scale).expect("fits");
        let mut coefficient = self.g.mul(weight, scale).expect("fits");
        let scaling = self.growth_steps.map(|steps| LossScale::declare(&mut self.g, steps));
        if let Some(scaling) = scaling {
            let state = self.g.param(scaling.state);
            coefficient = LossScale::seed(&mut self.g, state, coefficient).expect("fits");
        }
        let predicted = self.push(Op::Softmax, &[logits]);
        let mut step = Step::new(name, self.g);
        // The last two are fetched through the pass only to find their new ids.
        for (name, node) in
            [("loss", loss), ("predicted", predicted), ("", sample), ("", coefficient)]
        {
            step.fetches.push(Fetch { name: name.into(), node });
        }
        step.assigns = self.assigns;
        let mut step = fuse_epilogues(step);
        let seed: Vec<NodeId> = step.fetches.drain(2..).map(|f| f.node).collect();
        let trained: Vec<(ParamId, NodeId)> = step
            .graph
            .ids()
            .filter_map(|id| match step.graph.node(id).op {
                Op::Param { id: p } if step.graph.params()[p.index()].trainable => Some((p, id)),
                _ => None,
            })
            .collect();
        let nodes: Vec<NodeId> = trained.iter().map(|(_, n)| *n).collect();
        let found = gradients(&mut step.graph, &[(seed[0], seed[1])], &nodes);
        for ((param, _), node) in trained.iter().zip(found.expect("differentiable")) {
            let kernel = step.graph.params()[param.index()].name.ends_with("kernel");
            let (l1, l2) = if kernel { penalty } else { (0.0, 0.0) };
            step.gradients.push(Gradient { param: *param, node, l1, l2 });
        }
        step.update = Some(rule);
        step.loss_scale = scaling;
        if let Some(scaling) = scaling {
            let node = step.graph.param(scaling.state);
            step.fetches.push(Fetch { name: "loss_scale".into(), node });
        }
        step
    }
}

/// Dense layers with ReLU between them; `sizes` runs from the input to the classes.
pub fn mlp(sizes: &[usize], rule: UpdateRule, penalty: (f32, f32)) -> Step {
    layers(Net::new(Scope::All), sizes, rule, penalty)
}

/// Causal self-attention of two heads over learned positions, then a dense layer.
pub fn attention(rule: UpdateRule, penalty: (f32, f32)) -> Step {
    let mut net = Net::new(Scope::All);
    let x = net.feed("x", Type::rows([5, 6]));
    net.g.enter("positions");
    let (table, mix) = (net.param("positions/table", &[5, 4]), net.param("positions/mix", &[4, 6]));
    let positions = net.g.matmul(table, mix).expect("fits");
    let x = net.g.add(x, positions).expect("fits");
    net.g.enter("attention");
    let [q, k, v] = ["query", "key", "value"].map(|name| {
        let w = net.param(&format!("attention/{name}/kernel"), &[6, 2, 3]);
        net.g.einsum("abc,cde->abde", &[x, w]).expect("fits")
    });
    let scores = net.g.einsum("aecd,abcd->acbe", &[k, q]).expect("fits");
    let at = iota(&mut net.g, 5).expect("fits");
    let lines = net.g.reshape(at, &[5, 1]).expect("fits");
    let mask = net.g.binary(Binary::Ge, lines, at).expect("fits");
    let masked = net.g.scalar(-1e9);
    let scores = net.g.select(mask, scores, masked).expect("fits");
    let weights = net.push(Op::Softmax, &[scores]);
    let y = net.g.einsum("acbe,aecd->abcd", &[weights, v]).expect("fits");
    let w = net.param("attention/output/kernel", &[2, 3, 6]);
    let y = net.g.einsum("abcd,cde->abe", &[y, w]).expect("fits");
    let y = net.g.reshape(y, &[30]).expect("fits");
    let logits = net.dense("logits", y, 5);
    net.train("attention", logits, rule, penalty)
}

/// A block of a transformer over four tokens of eight: attention of four heads, layer normalisation, dropout, two dense
/// layers, and logits for eight classes. All sizes are multiples of four.
pub fn transformer(rule: UpdateRule, penalty: (f32, f32)) -> Step {
    let mut net = Net::new(Scope::All);
    let token = net.feed("token", Type::new(DType::I32, Space::Rows, [4]));
    net.g.enter("embedding");
    let table = net.param("embedding/table", &[8, 12]);
    let x = net.push(Op::Gather, &[table, token]);
    net.g.enter("attention");
    let norm = Op::LayerNorm(LayerNormAttrs { epsilon: 1e-3.into(), rms: false });
    let n = net.push(norm.clone(), &[x]);
    let [q, k, v] = ["query", "key", "value"].map(|name| {
        let w = net.param(&format!("attention/{name}/kernel"), &[12, 4, 3]);
        let b = net.param(&format!("attention/{name}/bias"), &[4, 3]);
        let y = net.g.einsum("abc,cde->abde", &[n, w]).expect("fits");
        net.g.add(y, b).expect("fits")
    });
    let scores = net.g.einsum("aecd,abcd->acbe", &[k, q]).expect("fits");
    let weights = net.push(Op::Softmax, &[scores]);
    let noise = net.g.ty(weights).dims.clone();
    let weights = net.push(Op::Dropout { rate: 0.25.into(), key: 3, noise }, &[weights]);
    let y = net.g.einsum("acbe,aecd->abcd", &[weights, v]).expect("fits");
    let w = net.param("attention/output/kernel", &[4, 3, 12]);
    let y = net.g.einsum("abcd,cde->abe", &[y, w]).expect("fits");
    let y = net.biased(y, "attention/output");
    let x = net.g.add(x, y).expect("fits");
    let n = net.push(norm, &[x]);
    let up = net.dense("up", n, 16);
    let up = net.relu(up);
    let down = net.dense("down", up, 12);
    let x = net.g.add(x, down).expect("fits");
    net.g.enter("mean");
    let x = net.g.mean_axes(x, &[0]).expect("fits");
    let x = net.g.reshape(x, &[12]).expect("fits");
    let logits = net.dense("logits", x, 8);
    net.train("transformer", logits, rule, penalty)
}

/// Convolutions with an even number of channels, batch normalisation and pooling, then dense layers.
pub fn even_cnn(scope: Scope, rule: UpdateRule) -> Step {
    let mut net = Net::new(scope);
    let x = net.feed("x", Type::rows([6, 6, 4]));
    let x = net.conv("first", x, 8, 3, 1);
    let x = net.batch_norm("norm", x);
    let x = net.relu(x);
    let x = net.conv("second", x, 4, 3, 2);
    let x = net.biased(x, "second");
    let x = net.relu(x);
    let geom = ConvGeom::new([3, 3, 4], 4, Window::new([3, 3], [3, 3], Padding::Valid));
    let x = net.push(Op::Pool(PoolKind::Max, geom.expect("fits")), &[x]);
    let x = net.g.reshape(x, &[4]).expect("fits");
    let x = net.dense("hidden", x, 16);
    let x = net.relu(x);
    let logits = net.dense("logits", x, 8);
    net.train("even_cnn", logits, rule, (0.0, 1e-3))
}

/// An LSTM and, over its outputs, a GRU backwards, then a dense layer.
pub fn recurrent(rule: UpdateRule, penalty: (f32, f32)) -> Step {
    let mut net = Net::new(Scope::All);
    let mut x = net.feed("x", Type::rows([4, 5]));
    for (cell, reverse) in [(RecurrentCell::Lstm, false), (RecurrentCell::Gru, true)] {
        let name = format!("recurrent_{}", cell.gates());
        let (inputs, units) = (net.g.ty(x).last(), 3);
        net.g.enter(&name);
        let [kernel, recurrent] = [("kernel", inputs), ("recurrent_kernel", units)]
            .map(|(what, n)| net.param(&format!("{name}/{what}"), &[n, cell.gates() * units]));
        let projected = net.push(Op::Dot(Epilogue::default()), &[x, kernel]);
        let (keep, bias, initial, masked) = (true, false, false, false);
        let attrs = RecurrentAttrs { cell, reverse, keep, bias, initial, masked };
        let y = net.push(Op::Recurrent(attrs), &[projected, recurrent]);
        x = net.push(Op::Slice { axis: 1, start: 0, len: units }, &[y]);
    }
    let x = net.g.reshape(x, &[12]).expect("fits");
    let logits = net.dense("logits", x, 5);
    net.train("recurrent", logits, rule, penalty)
}

/// A dense layer on every step of a sequence, the mean over the steps, then a dense layer. The weights do not depend on
/// the number of steps.
pub fn sequence(steps: usize, rule: UpdateRule) -> Step {
    let mut net = Net::new(Scope::All);
    let x = net.feed("x", Type::rows([steps, 6]));
    let hidden = net.dense("hidden", x, 8);
    let hidden = net.relu(hidden);
    net.g.enter("mean");
    let sum = net.g.sum_axes(hidden, &[0]).expect("fits");
    let sum = net.g.reshape(sum, &[8]).expect("fits");
    let mean = net.g.scale(sum, 1.0 / steps as f64).expect("fits");
    let logits = net.dense("logits", mean, 5);
    net.train("sequence", logits, rule, (0.0, 0.0))
}

/// [`mlp`] with loss scaling; the scale is fetched last.
pub fn scaled_mlp(
    sizes: &[usize],
    rule: UpdateRule,
    penalty: (f32, f32),
    growth_steps: u32,
) -> Step {
    let growth_steps = Some(growth_steps);
    layers(Net { growth_steps, ..Net::new(Scope::All) }, sizes, rule, penalty)
}

fn layers(mut net: Net, sizes: &[usize], rule: UpdateRule, penalty: (f32, f32)) -> Step {
    let mut x = net.feed("x", Type::rows([sizes[0]]));
    for (i, units) in sizes[1..].iter().enumerate() {
        x = net.dense(&format!("dense_{i}"), x, *units);
        if i + 2 < sizes.len() {
            x = net.relu(x);
        }
    }
    net.train("mlp", x, rule, penalty)
}

/// Two parallel dense layers on two positions of a hidden layer, concatenated on channels, then dense
/// layers on the result. For small batches all kernels but the last are large relative to the batch.
/// Input `[2, 70]`, 5 classes.
pub fn wide(rule: UpdateRule, penalty: (f32, f32)) -> Step {
    let mut net = Net::new(Scope::All);
    let x = net.feed("x", Type::rows([2, 70]));
    let hidden = net.dense("hidden", x, 110);
    let hidden = net.relu(hidden);
    let left = net.dense("left", hidden, 90);
    let left = net.relu(left);
    let right = net.dense("right", hidden, 83);
    net.g.enter("joined");
    let joined = net.push(Op::Concat { axis: 1 }, &[left, right]);
    let flat = net.g.reshape(joined, &[2 * 173]).expect("fits");
    let mixed = net.dense("mixed", flat, 37);
    let mixed = net.relu(mixed);
    let logits = net.dense("top", mixed, 5);
    net.train("wide", logits, rule, penalty)
}

/// Two convolution branches concatenated on channels, a max-pool in parallel with a strided convolution,
/// their sum, optional dropout, global average pooling and a dense layer. Input `[6, 6, 3]`, 5 classes.
pub fn cnn(scope: Scope, dropout: bool, rule: UpdateRule, penalty: (f32, f32)) -> Step {
    convolutions(Net::new(scope), dropout, rule, penalty)
}

/// [`cnn`] with loss scaling; the scale is fetched last.
pub fn scaled_cnn(scope: Scope, rule: UpdateRule, penalty: (f32, f32), growth_steps: u32) -> Step {
    let growth_steps = Some(growth_steps);
    convolutions(Net { growth_steps, ..Net::new(scope) }, false, rule, penalty)
}

fn convolutions(mut net: Net, dropout: bool, rule: UpdateRule, penalty: (f32, f32)) -> Step {
    let x = net.feed("x", Type::rows([6, 6, 3]));
    let stem = net.conv("stem", x, 4, 3, 1);
    let stem = net.batch_norm("stem_norm", stem);
    let stem = net.relu(stem);
    let left = net.conv("left", stem, 3, 1, 1);
    let left = net.biased(left, "left");
    let left = net.relu(left);
    let right = net.conv("right", stem, 4, 3, 1);
    let right = net.batch_norm("right_norm", right);
    let right = net.relu(right);
    net.g.enter("joined");
    let joined = net.push(Op::Concat { axis: 2 }, &[left, right]);
    let geom = ConvGeom::new([6, 6, 7], 7, Window::new([2, 2], [2, 2], Padding::Valid));
    let pooled = net.push(Op::Pool(PoolKind::Max, geom.expect("fits")), &[joined]);
    let strided = net.conv("strided", joined, 7, 3, 2);
    net.g.enter("sum");
    let sum = net.g.add(pooled, strided).expect("fits");
    let mut y = net.relu(sum);
    if dropout {
        y = net.push(Op::Dropout { rate: 0.25.into(), key: 7, noise: vec![3, 3, 7] }, &[y]);
    }
    let y = net.g.mean_axes(y, &[0, 1]).expect("fits");
    let y = net.g.reshape(y, &[7]).expect("fits");
    let logits = net.dense("top", y, 5);
    net.train("cnn", logits, rule, penalty)
}

/// A network with unusual gradients: an embedding, a kernel that is used twice, two weights with the same
/// gradient, a scalar weight, and a gradient that is also fetched.
pub fn odd(rule: UpdateRule) -> Step {
    let mut net = Net::new(Scope::All);
    let token = net.feed("token", Type::new(DType::I32, Space::Rows, [2]));
    let table = net.param("table", &[5, 3]);
    let x = net.push(Op::Gather, &[table, token]);
    let mut x = net.g.reshape(x, &[6]).expect("fits");
    for name in ["a", "b"] {
        let w = net.param(name, &[6]);
        x = net.g.add(x, w).expect("fits");
    }
    let factor = net.param("factor", &[]);
    x = net.g.mul(x, factor).expect("fits");
    let shared = net.param("shared/kernel", &[6, 6]);
    for _ in 0..2 {
        x = net.push(Op::Dot(Epilogue::default()), &[x, shared]);
        x = net.relu(x);
    }
    let logits = net.dense("top", x, 5);
    let mut step = net.train("odd", logits, rule, (1e-3, 1e-3));
    let last = step.gradients.last().and_then(|g| g.node).expect("depends");
    let node = step.graph.push(Op::AllReduce { scope: Scope::All }, &[last]).expect("fits");
    step.fetches.push(Fetch { name: "gradient".into(), node });
    step
}
