//! Elementwise tapes as CUDA source: one device function per distinct tape, and one kernel for each
//! memory layout of its operands. Divisors are constants of the source, so the kernels need no
//! division.

use crate::launch::{Elem, Launch, MAX_BLOCKS, Ptr, Source, Word};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::ops::{Access, Binary, Instr, Tape, Unary};
use phalanx_graph::program::ValueId;
use std::collections::HashMap;
use std::fmt::Write;

/// Threads per block.
const THREADS: usize = 256;

/// Maximum elements per block of a grouped launch, as long as that needs few blocks.
pub(crate) const MAX_GROUPED_LEN: usize = 4096;

/// The kernels of a program's tapes.
#[derive(Default)]
pub(crate) struct Tapes {
    /// Names by definition.
    names: HashMap<String, String>,
    source: String,
}

impl Tapes {
    /// The source of all kernels registered so far. `kernels/prelude.cuh` must precede it.
    pub fn source(&self) -> String {
        self.source.clone()
    }

    /// Adds `head name body` to the source unless it exists. Returns its name.
    pub fn add(&mut self, prefix: &str, head: &str, body: &str) -> String {
        let key = format!("{head} {body}");
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let name = format!("{prefix}_{}", self.names.len());
        writeln!(self.source, "{head} {name}{body}").expect("strings take all");
        self.names.insert(key, name.clone());
        name
    }

    /// The device function `f(x0, x1, …, y0&, …)` of a tape.
    pub fn function(&mut self, tape: &Tape) -> String {
        let inputs = (0..tape.inputs.len()).map(|i| format!("float x{i}"));
        let outputs = (0..tape.outputs.len()).map(|o| format!("float& y{o}"));
        let params: Vec<String> = inputs.chain(outputs).collect();
        let mut body = format!("({}) {{\n", params.join(", "));
        for (i, instr) in tape.instrs.iter().enumerate() {
            writeln!(body, "    const float r{i} = {};", expression(instr)).expect("as above");
        }
        for (o, r) in tape.outputs.iter().enumerate() {
            writeln!(body, "    y{o} = r{r};").expect("as above");
        }
        self.add("tape", "__device__ __forceinline__ void", &(body + "}"))
    }

    fn kernel(&mut self, tape: &Tape, variant: &KernelVariant) -> String {
        let function = self.function(tape);
        let body = variant.body(tape, &function);
        self.add("fused", &format!("__global__ void __launch_bounds__({THREADS})"), &body)
    }

    fn grouped_kernel(&mut self, tape: &Tape, variant: &KernelVariant) -> String {
        let function = self.function(tape);
        let body = variant.grouped_body(tape, &function);
        self.add("grouped", &format!("__global__ void __launch_bounds__({THREADS})"), &body)
    }
}

/// A 32-bit constant, exactly.
pub(crate) fn literal(v: f32) -> String {
    let bits = v.to_bits();
    let (exponent, fraction) = (bits >> 23 & 0xff, bits & 0x7f_ffff);
    let sign = if bits >> 31 == 1 { "-" } else { "" };
    match (exponent, fraction) {
        (0xff, _) => format!("__uint_as_float(0x{bits:08x}u)"),
        (0, 0) => format!("{sign}0.0f"),
        (0, _) => format!("{sign}0x0.{:06x}p-126f", fraction << 1),
        _ => format!("{sign}0x1.{:06x}p{:+}f", fraction << 1, exponent as i32 - 127),
    }
}

fn expression(instr: &Instr) -> String {
    match *instr {
        Instr::Input(i) => format!("x{i}"),
        Instr::Const(bits) => literal(f64::from_bits(bits) as f32),
        Instr::Unary(u, a) => unary(u, &format!("r{a}")),
        Instr::Binary(b, l, r) => binary(b, &format!("r{l}"), &format!("r{r}")),
        Instr::Select(c, a, b) => format!("r{c} != 0.0f ? r{a} : r{b}"),
    }
}

fn unary(u: Unary, a: &str) -> String {
    let function = match u {
        Unary::Neg => return format!("-{a}"),
        Unary::Recip => return format!("1.0f / {a}"),
        Unary::Square => return format!("{a} * {a}"),
        Unary::Rsqrt => return format!("1.0f / sqrtf({a})"),
        Unary::Abs => "fabsf",
        Unary::Sign => "sign",
        Unary::Sqrt => "sqrtf",
        Unary::Exp => "expf",
        Unary::Expm1 => "expm1f",
        Unary::Log => "logf",
        Unary::Log1p => "log1pf",
        Unary::Tanh => "tanhf",
        Unary::Sigmoid => "sigmoid",
        Unary::Erf => "erff",
        Unary::Relu => "relu",
        Unary::Floor => "floorf",
        Unary::Sin => "sinf",
        Unary::Cos => "cosf",
        Unary::Atan => "atanf",
        Unary::Round => "rintf",
    };
    format!("{function}({a})")
}

fn binary(b: Binary, l: &str, r: &str) -> String {
    match b {
        Binary::Add => format!("{l} + {r}"),
        Binary::Sub => format!("{l} - {r}"),
        Binary::Mul => format!("{l} * {r}"),
        Binary::Div => format!("{l} / {r}"),
        Binary::Max => format!("larger({l}, {r})"),
        Binary::Min => format!("smaller({l}, {r})"),
        Binary::Pow => format!("powf({l}, {r})"),
        Binary::Rem => format!("fmodf({l}, {r})"),
        Binary::Gt => format!("{l} > {r} ? 1.0f : 0.0f"),
        Binary::Ge => format!("{l} >= {r} ? 1.0f : 0.0f"),
        Binary::Eq => format!("{l} == {r} ? 1.0f : 0.0f"),
    }
}

/// The properties of an operand's memory layout that select the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OperandLayout {
    elem: Elem,
    /// Distance between pixels, if they are not contiguous.
    ld: Option<usize>,
    /// Whether vector loads are possible.
    aligned: bool,
}

/// A kernel for a specific memory layout of the operands.
struct KernelVariant {
    inputs: Vec<OperandLayout>,
    output: OperandLayout,
    /// Elements of a pixel.
    width: usize,
    /// Elements that a thread processes at once.
    vector: usize,
    /// Whether indices need 64 bits.
    long: bool,
}

impl KernelVariant {
    fn new(tape: &Tape, x: &[Operand], y: &Operand) -> KernelVariant {
        let width = y.last().max(1);
        let full = |i: usize| tape.inputs[i] == Access::Full;
        let walked = || x.iter().enumerate().filter(|(i, _)| full(*i)).map(|(_, o)| o).chain([y]);
        let fits = |v: &usize| {
            let apart = |o: &Operand| o.ld != width;
            let whole = |o: &Operand| {
                let rows = !apart(o) || o.ld.is_multiple_of(*v) && width.is_multiple_of(*v);
                rows && o.ptr.offset.is_multiple_of(v * o.elem.bytes())
            };
            y.len.is_multiple_of(*v) && walked().all(whole)
        };
        let narrow = walked().all(|o| o.elem.bytes() == 2);
        let widths: &[usize] = if narrow { &[8, 4] } else { &[4] };
        let vector = widths.iter().copied().find(fits).unwrap_or(1);
        let layout = |o: &Operand, full: bool| OperandLayout {
            elem: o.elem,
            ld: (full && o.ld != width).then_some(o.ld),
            aligned: o.ptr.offset.is_multiple_of(16),
        };
        KernelVariant {
            inputs: x.iter().enumerate().map(|(i, o)| layout(o, full(i))).collect(),
            output: layout(y, true),
            width,
            vector,
            long: y.len >= 1 << 31,
        }
    }

    /// The index of element `e` of an operand.
    fn place(&self, layout: &OperandLayout) -> String {
        match layout.ld {
            None => "e".into(),
            Some(ld) => format!("(i64)(e / {w}) * {ld} + e % {w}", w = self.width),
        }
    }

    /// Statements that load operand `i` of the elements from `e` on into `v{i}`.
    fn load(&self, i: usize, access: Access) -> String {
        let v = self.vector;
        let each = |at: &str| format!("EVERY({v}) v{i}[k] = ld(x{i} + {at});");
        let body = match access {
            Access::Full => {
                format!("load_lanes<{v}>(x{i} + ({}), v{i});", self.place(&self.inputs[i]))
            }
            Access::Scalar => each("0"),
            Access::Suffix(p) if p.is_multiple_of(v) && self.inputs[i].aligned => {
                format!("load_lanes<{v}>(x{i} + e % {p}, v{i});")
            }
            Access::Suffix(p) => each(&format!("(e + k) % {p}")),
            Access::Prefix(g) if g.is_multiple_of(v) => each(&format!("e / {g}")),
            Access::Prefix(g) => each(&format!("(e + k) / {g}")),
        };
        format!("        float v{i}[{v}]; {body}\n")
    }

    /// Loads, the tape and the store, for the elements from `e` on.
    fn step(&self, tape: &Tape, function: &str) -> String {
        let v = self.vector;
        let loads: String = (0..self.inputs.len()).map(|i| self.load(i, tape.inputs[i])).collect();
        let args: Vec<String> = (0..self.inputs.len()).map(|i| format!("v{i}[k]")).collect();
        let place = self.place(&self.output);
        format!(
            "{loads}        float out[{v}];\n        EVERY({v}) {function}({}, out[k]);\n        \
             store_lanes<{v}>(y + ({place}), out);\n",
            args.join(", ")
        )
    }

    fn index(&self) -> &'static str {
        if self.long { "u64" } else { "u32" }
    }

    fn body(&self, tape: &Tape, function: &str) -> String {
        let params: String = self
            .inputs
            .iter()
            .enumerate()
            .map(|(i, l)| format!("const {}* x{i}, ", l.elem.c_name()))
            .collect();
        let (index, v) = (self.index(), self.vector);
        format!(
            "({params}{out}* y, i64 n) {{\n    {index} step = ({index})gridDim.x * {THREADS} * {v};\n    \
             for ({index} e = (({index})blockIdx.x * {THREADS} + threadIdx.x) * {v}; e < ({index})n; \
             e += step) {{\n{}    }}\n}}",
            self.step(tape, function),
            out = self.output.elem.c_name(),
        )
    }

    /// A kernel over a table: length, operands and result of every instance.
    fn grouped_body(&self, tape: &Tape, function: &str) -> String {
        let (index, v, words) = (self.index(), self.vector, self.inputs.len() + 2);
        let at =
            |i: usize, layout: &OperandLayout| format!("row[{i}].ptr<{}>()", layout.elem.c_name());
        let inputs: String = self
            .inputs
            .iter()
            .enumerate()
            .map(|(i, l)| format!("    const {}* x{i} = {};\n", l.elem.c_name(), at(i + 1, l)))
            .collect();
        format!(
            "(const Word* table, int parts) {{\n    \
             const Word* row = table + (i64)(blockIdx.x / parts) * {words};\n    \
             {index} n = ({index})row[0].number(), step = ({index})parts * {THREADS} * {v};\n{inputs}    \
             {out}* y = {at_out};\n    \
             for ({index} e = (({index})(blockIdx.x % parts) * {THREADS} + threadIdx.x) * {v}; e < n; \
             e += step) {{\n{step}    }}\n}}",
            out = self.output.elem.c_name(),
            at_out = at(words - 1, &self.output),
            step = self.step(tape, function),
        )
    }
}

fn launch(kernel: String, blocks: usize) -> Launch {
    let grid = [blocks.clamp(1, MAX_BLOCKS) as u32, 1, 1];
    let threads = THREADS as u32;
    Launch { source: Source::Tapes, kernel, grid, threads, shared: 0, args: vec![] }
}

/// A tape over the elements of `y`, which may overwrite an operand that is read element by element.
pub(crate) fn fused(
    cx: &mut LowerCtx<'_>,
    tapes: &mut Tapes,
    tape: &Tape,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let x: Vec<Operand> = x.iter().map(|id| cx.operand(*id)).collect();
    let y = cx.operand(y);
    if y.len == 0 {
        return vec![];
    }
    let variant = KernelVariant::new(tape, &x, &y);
    let blocks = (y.len / variant.vector).div_ceil(THREADS);
    let launch = launch(tapes.kernel(tape, &variant), blocks);
    let launch = x.iter().fold(launch, |l, o| l.arg(o.ptr));
    vec![launch.arg(y.ptr).arg(y.len)]
}

/// Many independent instances of one tape over small contiguous values, in one launch for each
/// memory layout.
pub(crate) fn fused_many(
    tapes: &mut Tapes,
    tape: &Tape,
    instances: &[(Vec<Operand>, Operand)],
) -> Vec<Launch> {
    // Kernels in order of first use, with their rows of the table.
    let mut groups: Vec<(String, usize, Vec<Word>)> = vec![];
    let words = tape.inputs.len() + 2;
    for (x, y) in instances {
        if y.len == 0 {
            continue;
        }
        let kernel = tapes.grouped_kernel(tape, &KernelVariant::new(tape, x, y));
        let at = groups.iter().position(|(k, ..)| *k == kernel).unwrap_or_else(|| {
            groups.push((kernel, 0, vec![]));
            groups.len() - 1
        });
        let (_, longest, table) = &mut groups[at];
        *longest = y.len.max(*longest);
        table.push(y.len.into());
        let operands: Vec<Ptr> = x.iter().chain([y]).map(|o| o.ptr).collect();
        table.extend(operands.into_iter().map(Word::Ptr));
    }
    let finish = |(kernel, longest, table): (String, usize, Vec<Word>)| {
        let rows = table.len() / words;
        let parts = longest.div_ceil(MAX_GROUPED_LEN).min((MAX_BLOCKS / rows).max(1));
        let mut launch = launch(kernel, 1).arg(table).arg(parts as i32);
        launch.grid[0] = (rows * parts) as u32;
        launch
    };
    groups.into_iter().map(finish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Block;

    #[test]
    fn constants_are_exact() {
        for (v, text) in [
            (3.0, "0x1.800000p+1f"),
            (-0.1, "-0x1.99999ap-4f"),
            (0.0, "0.0f"),
            (-0.0, "-0.0f"),
            (f32::from_bits(1), "0x0.000002p-126f"),
            (f32::MAX, "0x1.fffffep+127f"),
            (f32::NEG_INFINITY, "__uint_as_float(0xff800000u)"),
        ] {
            assert_eq!(literal(v), text);
        }
    }

    fn value(elem: Elem, offset: usize, ld: usize) -> Operand {
        let ptr = Ptr::new(0, Block::Arena, offset);
        Operand { ptr, elem, dims: vec![8, 96], ld, len: 5 * 8 * 96 }
    }

    fn add(access: Access) -> Tape {
        let instrs = vec![Instr::Input(0), Instr::Input(1), Instr::Binary(Binary::Add, 0, 1)];
        Tape { inputs: vec![Access::Full, access], instrs, outputs: vec![2] }
    }

    #[test]
    fn vector_width_follows_from_type_stride_and_alignment() {
        let tape = add(Access::Full);
        let v = |elem, offset, ld| {
            let x = value(elem, offset, ld);
            KernelVariant::new(&tape, &[x.clone(), x], &value(elem, 0, 96)).vector
        };
        assert_eq!(v(Elem::F32, 0, 96), 4);
        assert_eq!(v(Elem::F32, 8, 96), 1);
        assert_eq!(v(Elem::F32, 0, 98), 1);
        assert_eq!(v(Elem::F32, 16, 104), 4);
        assert_eq!(v(Elem::Bf16, 16, 104), 8);
        assert_eq!(v(Elem::Bf16, 8, 100), 4);
    }

    #[test]
    fn equal_tapes_share_a_kernel() {
        let mut tapes = Tapes::default();
        let mut kernel = |access, ld| {
            let x = [value(Elem::F32, 0, ld), value(Elem::F32, 512, 96)];
            let tape = add(access);
            let variant = KernelVariant::new(&tape, &x, &value(Elem::F32, 1024, 96));
            tapes.kernel(&tape, &variant)
        };
        let first = kernel(Access::Full, 96);
        assert_eq!(kernel(Access::Full, 96), first);
        let others =
            [kernel(Access::Full, 192), kernel(Access::Suffix(96), 96), kernel(Access::Scalar, 96)];
        assert!(others.iter().all(|k| *k != first));
        // The tapes compute the same, so they share one function.
        assert_eq!(tapes.source().matches("__forceinline__").count(), 1);
    }

    #[cfg(feature = "emulator")]
    mod emulated {
        use super::*;
        use crate::ops::harness::{Harness, SEEDS, close, numbers};
        use phalanx_cpu::reference::run_tape;

        fn single(inputs: Vec<Access>, last: Instr) -> Tape {
            let mut instrs: Vec<Instr> = (0..inputs.len() as u16).map(Instr::Input).collect();
            instrs.push(last);
            Tape { outputs: vec![inputs.len() as u16], inputs, instrs }
        }

        #[phalanx_testing::needs(gxx)]
        #[test]
        fn unary_functions_match_the_reference() {
            let mut harness = Harness::new(None, 1);
            let x = [0.0, 0.5, -0.5, 9.25, -9.25, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            let (input, y) = (harness.rows(&[8], 0, &x), harness.rows(&[8], 0, &[0.0; 8]));
            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for u in Unary::ALL {
                let tape = single(vec![Access::Full], Instr::Unary(u, 0));
                harness.run(|cx, tapes| fused(cx, tapes, &tape, &[input], y));
                let want = run_tape(&tape, &[&wide], x.len());
                close(u.name(), &harness.get(y), &want[0], 1e-6);
            }
        }

        #[phalanx_testing::needs(gxx)]
        #[test]
        fn binary_functions_match_the_reference() {
            let mut harness = Harness::new(None, 1);
            let nan = f32::NAN;
            let (a, b) = ([2.0, 3.0, nan, 1.0, 2.0], [2.0, 0.5, 1.0, nan, 4.0]);
            let (left, right) = (harness.rows(&[5], 0, &a), harness.rows(&[5], 0, &b));
            let y = harness.rows(&[5], 0, &[0.0; 5]);
            let no = f64::NAN;
            for (op, want) in [
                (Binary::Add, [4.0, 3.5, no, no, 6.0]),
                (Binary::Sub, [0.0, 2.5, no, no, -2.0]),
                (Binary::Mul, [4.0, 1.5, no, no, 8.0]),
                (Binary::Div, [1.0, 6.0, no, no, 0.5]),
                (Binary::Max, [2.0, 3.0, no, no, 4.0]),
                (Binary::Min, [2.0, 0.5, no, no, 2.0]),
                (Binary::Pow, [4.0, 3f64.sqrt(), no, 1.0, 16.0]),
                (Binary::Rem, [0.0, 0.0, no, no, 2.0]),
                (Binary::Gt, [0.0, 1.0, 0.0, 0.0, 0.0]),
                (Binary::Ge, [1.0, 1.0, 0.0, 0.0, 0.0]),
                (Binary::Eq, [1.0, 0.0, 0.0, 0.0, 0.0]),
            ] {
                let tape = single(vec![Access::Full; 2], Instr::Binary(op, 0, 1));
                harness.run(|cx, tapes| fused(cx, tapes, &tape, &[left, right], y));
                close(op.name(), &harness.get(y), &want, 1e-6);
            }
            let tape = single(vec![Access::Full; 3], Instr::Select(0, 1, 2));
            harness.run(|cx, tapes| fused(cx, tapes, &tape, &[left, left, right], y));
            close("select", &harness.get(y), &[2.0, 3.0, no, 1.0, 2.0], 0.0);
        }

        #[phalanx_testing::needs(gxx)]
        #[test]
        fn every_access_pattern_matches_the_reference() {
            for seed in SEEDS {
                for (width, gap) in [(12, 0), (12, 4), (12, 3), (7, 0), (7, 2)] {
                    check_access_patterns(seed, width, gap);
                }
            }
        }

        fn check_access_patterns(seed: Option<u64>, width: usize, gap: usize) {
            let (rows, high) = (3, 5);
            let mut harness = Harness::new(seed, rows);
            let (dims, n) = ([high, width], rows * high * width);
            let (x, zero) = (numbers(n, 1), vec![0.0; n]);
            let input = harness.rows(&dims, gap, &x);
            let y = harness.rows(&dims, gap, &zero);
            let other = [numbers(n, 2), numbers(1, 3), numbers(width, 4), numbers(rows * high, 5)];
            for (values, access, id) in [
                (&other[0], Access::Full, harness.rows(&dims, 0, &other[0])),
                (&other[1], Access::Scalar, harness.whole(&[1], &other[1])),
                (&other[2], Access::Suffix(width), harness.whole(&[width], &other[2])),
                (&other[3], Access::Prefix(width), harness.rows(&[high, 1], 0, &other[3])),
            ] {
                let tape = add(access);
                harness.run(|cx, tapes| fused(cx, tapes, &tape, &[input, id], y));
                let read = |e: usize| match access {
                    Access::Full => values[e],
                    Access::Scalar => values[0],
                    Access::Suffix(p) => values[e % p],
                    Access::Prefix(g) => values[e / g],
                };
                let want: Vec<f64> = (0..n).map(|e| f64::from(x[e] + read(e))).collect();
                close(&format!("{access:?} {width} {gap}"), &harness.get(y), &want, 0.0);
            }
            // The result may overwrite an operand that is read element by element.
            let id = harness.whole(&[width], &other[2]);
            let tape = add(Access::Suffix(width));
            let step = harness.prepare(|cx, tapes| fused(cx, tapes, &tape, &[input, id], input));
            harness.start(step);
            let want: Vec<f64> = (0..n).map(|e| f64::from(x[e] + other[2][e % width])).collect();
            close("in place", &harness.get(input), &want, 0.0);
        }

        #[phalanx_testing::needs(gxx)]
        #[test]
        fn grouped_tapes_match_the_reference() {
            for seed in SEEDS {
                let mut harness = Harness::new(seed, 1);
                let mut instances = vec![];
                let mut wanted = vec![];
                for (i, n) in [5, 96, 5000, 1, 160].into_iter().enumerate() {
                    let (a, b) = (numbers(n, i as u64), numbers(n, 9 + i as u64));
                    let y = harness.whole(&[n], &vec![0.0; n]);
                    instances.push((vec![harness.whole(&[n], &a), harness.whole(&[n], &b)], y));
                    let sum = a.iter().zip(&b).map(|(a, b)| f64::from(a + b));
                    wanted.push(sum.collect::<Vec<f64>>());
                }
                let tape = add(Access::Full);
                harness.run(|cx, tapes| {
                    let found: Vec<(Vec<Operand>, Operand)> = instances
                        .iter()
                        .map(|(x, y)| {
                            (x.iter().map(|id| cx.operand(*id)).collect(), cx.operand(*y))
                        })
                        .collect();
                    let launches = fused_many(tapes, &tape, &found);
                    // Those whose length is a multiple of four, and the others.
                    assert_eq!(launches.len(), 2);
                    launches
                });
                for ((_, y), want) in instances.iter().zip(&wanted) {
                    close("many", &harness.get(*y), want, 0.0);
                }
            }
        }
    }
}
