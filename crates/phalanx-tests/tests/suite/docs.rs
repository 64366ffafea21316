//! Checks that what the documentation names exists: files, links, items of the code, environment variables.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const EXTENSIONS: [&str; 11] =
    [".rs", ".py", ".sh", ".md", ".toml", ".cu", ".cuh", ".cpp", ".hpp", ".svg", ".png"];

/// Folders that paths in the documentation may be relative to.
const ROOTS: [&str; 14] = [
    "",
    "crates",
    "crates/phalanx/src",
    "crates/phalanx-graph/src",
    "crates/phalanx-cpu/src",
    "crates/phalanx-cuda/src",
    "crates/phalanx-cli/src",
    "crates/phalanx-cuda-driver/src",
    "crates/phalanx-distributed/src",
    "crates/phalanx-exec/src",
    "crates/phalanx-hdf5/src",
    "crates/phalanx-testing/src",
    "crates/phalanx/src/model",
    "docs",
];

/// Files that a reader makes.
const EXAMPLES: [&str; 1] = ["src/main.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below a folder with one of some extensions.
fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            files(&path, extensions, found);
        } else if extensions.iter().any(|extension| name.ends_with(extension)) {
            found.push(path);
        }
    }
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md"].iter().map(|name| root().join(name)).collect();
    files(&root().join("docs"), &[".md"], &mut paths);
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// Text in backquotes, outside of code blocks.
fn code_spans(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        Some((before, (names, after))) => {
            names.split(',').map(|name| format!("{before}{}{after}", name.trim())).collect()
        }
        None => vec![path.to_string()],
    }
}

fn is_path(span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-{},".contains(c);
    let named = EXTENSIONS.iter().any(|extension| span.ends_with(extension));
    span.chars().all(plain) && named && !span.starts_with('.') && span.contains('/')
}

#[test]
fn files_and_links_in_the_documentation_exist() {
    let mut missing = BTreeSet::new();
    for (document, text) in documents() {
        let name = document.file_name().unwrap().to_string_lossy().into_owned();
        for span in code_spans(&text).into_iter().filter(|span| is_path(span)) {
            for path in alternatives(span) {
                let here = |folder: &&str| root().join(folder).join(&path).exists();
                let beside = document.parent().unwrap().join(&path).exists();
                let known = beside || EXAMPLES.contains(&path.as_str());
                if !known && !ROOTS.iter().any(here) {
                    missing.insert(format!("{name}: {path}"));
                }
            }
        }
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            let local = !link.contains("://") && !file.is_empty() && !file.contains(' ');
            if local && !document.parent().unwrap().join(file).exists() {
                missing.insert(format!("{name}: link to {file}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn items_in_the_documentation_exist() {
    let mut sources = vec![];
    files(&root().join("crates"), &[".rs"], &mut sources);
    let code: String = sources
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect::<Vec<_>>()
        .join("\n");
    let words: BTreeSet<&str> =
        code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let mut missing = BTreeSet::new();
    for (document, text) in documents() {
        let name = document.file_name().unwrap().to_string_lossy().into_owned();
        for span in code_spans(&text) {
            let item = span.trim_end_matches("()");
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            if item.contains("::") && !item.starts_with("std::") && item.chars().all(plain) {
                let absent =
                    item.split("::").find(|part| !part.is_empty() && !words.contains(part));
                missing.extend(absent.map(|part| format!("{name}: {item}: no {part}")));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The texts of the files that a span of a document names.
fn named_files(document: &Path, span: &str) -> Vec<String> {
    let read = |path: String| {
        let beside = document.parent().unwrap().join(&path);
        let candidates = ROOTS.iter().map(|folder| root().join(folder).join(&path)).chain([beside]);
        candidates.into_iter().find_map(|path| std::fs::read_to_string(path).ok())
    };
    alternatives(span).into_iter().filter_map(read).collect()
}

/// Code spans outside of code blocks, each with the text before it.
fn spans_with_lead(text: &str) -> Vec<(String, String)> {
    let outside: Vec<&str> = text.split("```").step_by(2).collect();
    let pairs = |part: &&str| {
        let pieces: Vec<String> = part.split('`').map(str::to_string).collect();
        pieces.chunks_exact(2).map(|p| (p[0].clone(), p[1].clone())).collect::<Vec<_>>()
    };
    outside.iter().flat_map(pairs).collect()
}

/// "`item` in `file`", "`a` and `b` in `file`" and "`item` (`file`)".
#[test]
fn items_in_the_documentation_are_in_the_files_beside_them() {
    let mut missing = BTreeSet::new();
    for (document, text) in documents() {
        let name = document.file_name().unwrap().to_string_lossy().into_owned();
        let spans = spans_with_lead(&text);
        for (i, (lead, path)) in spans.iter().enumerate() {
            if !is_path(path) || !matches!(lead.as_str(), " in " | " in\n" | " (" | "\n(") {
                continue;
            }
            let sources = named_files(&document, path);
            let mut at = i;
            while at > 0 {
                let (lead, item) = &spans[at - 1];
                let item = item.trim_end_matches("()").rsplit("::").next().unwrap_or_default();
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                if !sources.is_empty() && !item.is_empty() && item.chars().all(word) {
                    let found = sources.iter().any(|source| source.contains(item));
                    (!found).then(|| missing.insert(format!("{name}: {item} in {path}")));
                }
                if !matches!(lead.as_str(), " and " | ", " | " or ") {
                    break;
                }
                at -= 1;
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn environment_variables_are_read_where_the_documentation_says() {
    let document = root().join("docs/environment.md");
    let text = std::fs::read_to_string(&document).unwrap();
    let mut missing = BTreeSet::new();
    for row in text.lines().filter(|line| line.starts_with("| `PHALANX_")) {
        let columns: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let variables = code_spans(columns[0]);
        for path in code_spans(columns.last().unwrap()).into_iter().filter(|span| is_path(span)) {
            let sources = named_files(&document, path);
            for variable in &variables {
                if !sources.iter().any(|source| source.contains(variable)) {
                    missing.insert(format!("{variable} in {path}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_environment_variable_is_documented() {
    let mut sources = vec![];
    for folder in ["crates", "tests", "benches", "python", ".ci"] {
        files(&root().join(folder), &[".rs", ".py", ".sh"], &mut sources);
    }
    let documented = std::fs::read_to_string(root().join("docs/environment.md")).unwrap();
    let mut missing = BTreeSet::new();
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("PHALANX_") {
            let rest = &text[at..];
            let end =
                rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
            let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('_');
            let read = ["env", "environ", "${", "$PHALANX", "var("].iter().any(|word| {
                let line = text[..at].rfind('\n').map_or(0, |start| start + 1);
                text[line..].lines().next().unwrap_or_default().contains(word)
            });
            if read && name.len() > "PHALANX_".len() && !documented.contains(name) {
                missing.insert(name.to_string());
            }
        }
    }
    assert!(missing.is_empty(), "docs/environment.md lacks {missing:?}");
}
