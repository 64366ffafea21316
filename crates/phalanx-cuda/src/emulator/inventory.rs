//! The distinct kernels that programs launch: those of files by their instantiation, generated ones
//! by their source.

use crate::device::Plan;
use crate::fallback;
use crate::launch::{Launch, Source};
use crate::lower::FromTable;
use crate::nvrtc;
use crate::plan::{Allocations, RunMode};
use crate::resident_dataset::{StepLayout, Table};
use crate::tape::Tapes;
use crate::work_item::Task;
use phalanx_cuda_driver::libs::{self, Lib};
use phalanx_exec::{Column, ColumnData};
use phalanx_graph::program::Program;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The distinct kernels that programs launch.
#[derive(Default)]
pub struct KernelInventory {
    /// Instantiations by file.
    files: BTreeMap<&'static str, BTreeSet<String>>,
    tapes: Tapes,
    generated: BTreeSet<String>,
}

/// A unit of compilation.
struct Unit {
    name: &'static str,
    source: String,
    kernels: Vec<String>,
}

impl KernelInventory {
    /// Adds the kernels of a program that runs on one replica, or on several that share a GPU.
    pub fn add(&mut self, program: &Program) {
        self.add_plan(&Allocations::of(program).lower(program, RunMode::default()).0);
    }

    /// Adds the kernels of a program in every mode: alone and with other GPUs, with and without
    /// gradient accumulation, with samples from the host and from a resident dataset.
    pub fn add_every_way(&mut self, program: &Program) {
        let allocations = Allocations::of(program);
        let table = table(program);
        let step = StepLayout::new(1, program.options().max_batch, false);
        let (inputs, fetch_bytes) = (allocations.inputs, allocations.fetch_bytes);
        let from = Some(FromTable { table: &table, step, inputs, fetch_bytes });
        for joined in [false, true] {
            for accumulate in [None, Some(false), Some(true)] {
                let mode =
                    RunMode { joined, accumulate, from: from.filter(|_| accumulate.is_none()) };
                self.add_plan(&allocations.lower(program, mode).0);
            }
        }
        self.add(program);
    }

    /// Compiles every kernel for GPUs of a compute capability.
    ///
    /// # Errors
    /// NVRTC is missing or refuses a kernel.
    pub fn compile_all(&self, capability: i32) -> Result<(), String> {
        self.units().iter().try_for_each(|unit| unit.compile(&unit.kernels, capability))
    }

    /// Compiles one variant of each kernel for each number type.
    ///
    /// # Errors
    /// Like [`KernelInventory::compile_all`].
    pub fn compile_some(&self, capability: i32) -> Result<(), String> {
        self.units().iter().try_for_each(|unit| {
            let narrow = |k: &str| ["bf16", "half"].map(|elem| k.contains(elem));
            let variants: BTreeMap<_, &String> =
                unit.kernels.iter().map(|k| ((base(k), narrow(k)), k)).collect();
            let some: Vec<String> = variants.into_values().cloned().collect();
            unit.compile(&some, capability)
        })
    }

    /// Adds the kernels of a plan, and the fallbacks for convolutions that cuDNN does not support.
    fn add_plan(&mut self, plan: &Plan) {
        let names = self.add_tapes(&plan.tapes);
        for task in plan.work_items.iter().flat_map(|w| &w.tasks) {
            let launch = match task {
                Task::Launch(launch) => launch.clone(),
                Task::Conv(conv) => fallback::launch(conv),
                Task::Gemm(_) | Task::Clear(_) | Task::Reduce(_) => continue,
            };
            let Launch { source, kernel, .. } = launch;
            match source {
                Source::File(file) => self.files.entry(file).or_default().insert(kernel),
                Source::Tapes => self.generated.insert(names[&kernel].clone()),
            };
        }
    }

    /// Adds the definitions of a program. Returns the unique name of each.
    fn add_tapes(&mut self, text: &str) -> HashMap<String, String> {
        let mut names = HashMap::new();
        for definition in definitions(text) {
            let (head, name, body) = parts(definition);
            let prefix = name.split('_').next().unwrap_or(name);
            let known = self.tapes.add(prefix, head, &renamed(body, &names));
            names.insert(name.to_string(), known);
        }
        names
    }

    /// All kernels, by source.
    fn units(&self) -> Vec<Unit> {
        let unit = |of: Source, kernels: &BTreeSet<String>| Unit {
            name: of.name(),
            source: nvrtc::source(of, &self.tapes.source()).unwrap(),
            kernels: kernels.iter().cloned().collect(),
        };
        let files = self.files.iter().map(|(file, kernels)| unit(Source::File(file), kernels));
        files.chain([unit(Source::Tapes, &self.generated)]).collect()
    }

    /// Kernels of the files that no program launches.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = vec![];
        for (file, text) in nvrtc::FILES {
            let launched = self.files.get(file).into_iter().flatten();
            let launched: BTreeSet<&str> = launched.map(|k| base(k)).collect();
            let defined = defined(text);
            assert!(!defined.is_empty(), "{file}.cu defines no kernel");
            let absent = defined.into_iter().filter(|name| !launched.contains(name));
            missing.extend(absent.map(|name| format!("{file}.cu: {name}")));
        }
        missing
    }
}

impl Unit {
    fn compile(&self, kernels: &[String], capability: i32) -> Result<(), String> {
        let failed = |e: String| format!("sm_{capability}, {}: {e}", self.name);
        libs::find(Lib::Nvrtc).map_err(|e| failed(e.to_string()))?;
        let compiled = nvrtc::compile_uncached(&self.source, kernels, capability);
        let compiled = compiled.map_err(|e| failed(e.to_string()))?;
        match compiled.names.len() == kernels.len() && !compiled.cubin.is_empty() {
            true => Ok(()),
            false => Err(failed("kernels are missing in the compiled code".into())),
        }
    }
}

/// A table with one column for each feed with a row axis.
fn table(program: &Program) -> Table {
    let rows = program.feeds().iter().filter(|f| f.ty.is_rows());
    let zeros: Vec<Vec<f32>> = rows.map(|f| vec![0.0; f.ty.len()]).collect();
    let column = |cells| Column { data: ColumnData::F32(cells), row_len: cells.len(), image: None };
    let columns: Vec<Column<'_>> = zeros.iter().map(|cells| column(&cells[..])).collect();
    Table::new(&columns, 0)
}

/// A kernel's name without its template arguments.
fn base(kernel: &str) -> &str {
    kernel.split('<').next().unwrap_or(kernel)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The names of the kernels that a file defines.
fn defined(text: &str) -> Vec<&str> {
    let name = |after: &'_ str| -> usize {
        let bounds = after.find("__launch_bounds__(").filter(|at| *at < after.find('{').unwrap());
        // After the launch bounds, which have their own parentheses.
        let mut from = bounds.map_or(0, |at| at + "__launch_bounds__(".len());
        let mut open = usize::from(bounds.is_some());
        while open > 0 {
            match after.as_bytes()[from] {
                b'(' => open += 1,
                b')' => open -= 1,
                _ => {}
            }
            from += 1;
        }
        from + after[from..].find('(').unwrap()
    };
    text.match_indices("__global__")
        .map(|(at, mark)| {
            let after = &text[at + mark.len()..];
            let head = &after[..name(after)];
            head.rsplit(|c| !is_word(c)).next().unwrap()
        })
        .collect()
}

/// The functions and kernels of a program, one by one.
fn definitions(text: &str) -> Vec<&str> {
    let starts = |at: &usize| {
        let rest = &text[*at..];
        let begins = rest.starts_with("__device__") || rest.starts_with("__global__");
        begins && (*at == 0 || text.as_bytes()[at - 1] == b'\n')
    };
    let mut starts: Vec<usize> = (0..text.len()).filter(starts).collect();
    starts.push(text.len());
    starts.windows(2).map(|pair| text[pair[0]..pair[1]].trim_end()).collect()
}

/// The text before a definition's name, its name, and the rest.
fn parts(definition: &str) -> (&str, &str, &str) {
    let numbered = |word: &str| {
        let parts = word.split_once('_');
        parts.is_some_and(|(prefix, number)| {
            prefix.chars().all(|c| c.is_ascii_lowercase()) && number.parse::<usize>().is_ok()
        })
    };
    let words = definition.match_indices(' ').map(|(at, _)| {
        let rest = &definition[at + 1..];
        (at, &rest[..rest.find('(').unwrap_or(0)])
    });
    let (at, name) = words.into_iter().find(|(_, word)| numbered(word)).expect("a name");
    (&definition[..at], name, &definition[at + 1 + name.len()..])
}

/// Replaces words in a text.
fn renamed(text: &str, names: &HashMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        out += names.get(&rest[..word]).map_or(&rest[..word], String::as_str);
        rest = &rest[word..];
        let other = rest.find(is_word).unwrap_or(rest.len());
        out += &rest[..other];
        rest = &rest[other..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_in_their_files() {
        let text = "__global__ void plain(int n) {}\ntemplate <int V>\n__global__ void \
                    __launch_bounds__(f(256), V > 4 ? 3 : 4)\nbounded(int n) {}\nPOOL __global__ void last() {}";
        assert_eq!(defined(text), ["plain", "bounded", "last"]);
    }

    #[test]
    fn equal_kernels_of_two_programs_are_one() {
        let program = |first: &str| {
            format!(
                "{first}__device__ __forceinline__ void tape_1(float x0) {{\n}}\n\
                 __global__ void __launch_bounds__(256) fused_2(int n) {{ tape_1(n); }}\n"
            )
        };
        let mut launched = KernelInventory::default();
        let other = "__device__ __forceinline__ void tape_0(float& y) {\n}\n";
        let first = launched.add_tapes(&program(""));
        let second = launched.add_tapes(&program(other));
        assert_eq!(first["fused_2"], second["fused_2"]);
        assert_eq!(launched.tapes.source().matches("__global__").count(), 1);
        assert_eq!(first["tape_1"], "tape_0");
    }
}
