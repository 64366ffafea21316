use super::*;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// How the server answers one request.
#[derive(Clone, Copy)]
enum Answer {
    /// Sends the file, or the requested range.
    Whole,
    /// Sends the start of the file, then closes the connection.
    Cut(usize),
    /// Sends the file from its start and ignores the requested range.
    NoRanges,
    Status(&'static str),
}

/// A local server that answers with `data` as configured, then closes. Also returns the requested
/// ranges.
fn serve(data: &[u8], answers: &[Answer]) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(vec![]));
    let (data, seen) = (data.to_vec(), asked.clone());
    let mut answers: VecDeque<Answer> = answers.iter().copied().collect();
    std::thread::spawn(move || {
        while let Some(answer) = answers.pop_front() {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut range = None;
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let line = line.unwrap().to_lowercase();
                if let Some(value) = line.strip_prefix("range: bytes=") {
                    range = value.trim_end_matches('-').parse::<usize>().ok();
                }
                if line.is_empty() {
                    break;
                }
            }
            seen.lock().unwrap().push(format!("{range:?}"));
            let from = match answer {
                Answer::NoRanges => 0,
                _ => range.unwrap_or(0),
            };
            let status = match (answer, from) {
                (Answer::Status(status), _) => status,
                (_, 0) => "200 OK",
                (_, from) if from >= data.len() => "416 Range Not Satisfiable",
                _ => "206 Partial Content",
            };
            let body = match answer {
                Answer::Status(_) => &[],
                _ => data.get(from..).unwrap_or_default(),
            };
            let range = format!("Content-Range: bytes {from}-{}/{}\r\n", data.len(), data.len());
            let header = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n",
                body.len(),
                if status.starts_with("206") { range } else { String::new() },
            );
            let _ = stream.write_all(header.as_bytes());
            let end = if let Answer::Cut(n) = answer { n.min(body.len()) } else { body.len() };
            let _ = stream.write_all(&body[..end]);
        }
    });
    (url, asked)
}

/// Leaks a few strings, because the tables of real datasets are constants.
fn remote(urls: &[String], data: &[u8]) -> Remote<'static> {
    let urls: Vec<&'static str> = urls.iter().map(|u| &*u.clone().leak()).collect();
    let sum = hexadecimal(&sha2::Sha256::digest(data)).leak();
    Remote { file: "file.bin", urls: urls.leak(), checksum: Checksum::Sha256(sum) }
}

fn data() -> Vec<u8> {
    (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect()
}

#[test]
fn a_file_arrives_whole_and_checked() {
    let (dir, data) = (tempfile::tempdir().unwrap(), data());
    let (url, _) = serve(&data, &[Answer::Whole]);
    let mut last = None;
    let into = dir.path().join("new/mnist");
    let mut progress = |t: &Transfer| last = Some(t.clone());
    let path = fetch(&remote(&[url], &data), &into, &mut progress).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), data);
    assert_eq!(std::fs::read_dir(&into).unwrap().count(), 1, "nothing else is left");
    let n = data.len() as u64;
    let end = Transfer { file: "file.bin".into(), received: n, total: Some(n) };
    assert_eq!(last, Some(end));
    // The server is gone and not needed any more.
    assert_eq!(fetch(&remote(&[], &data), &into, &mut |_| {}).unwrap(), path);
}

#[test]
fn an_interrupted_transfer_resumes() {
    let (dir, data) = (tempfile::tempdir().unwrap(), data());
    let answers = [Answer::Cut(100_000), Answer::Cut(50_000), Answer::Whole];
    let (url, asked) = serve(&data, &answers);
    let path = fetch(&remote(&[url], &data), dir.path(), &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), data);
    assert_eq!(*asked.lock().unwrap(), ["None", "Some(100000)", "Some(150000)"]);
    // A partial file of an earlier run, and a server that cannot resume it.
    for answer in [Answer::Whole, Answer::NoRanges] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file.bin.part"), &data[..1234]).unwrap();
        let (url, asked) = serve(&data, &[answer]);
        let path = fetch(&remote(&[url], &data), dir.path(), &mut |_| {}).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), data);
        assert_eq!(*asked.lock().unwrap(), ["Some(1234)"]);
    }
}

#[test]
fn failures_are_reported_and_leave_no_file() {
    let (dir, data) = (tempfile::tempdir().unwrap(), data());
    let mut other = data.clone();
    other[5] ^= 1;
    let message = |urls: &[String]| {
        let result = fetch(&remote(urls, &data), dir.path(), &mut |_| {});
        let message = result.unwrap_err().to_string();
        assert!(!dir.path().join("file.bin").exists());
        message
    };
    assert!(message(&[serve(&other, &[Answer::Whole]).0]).contains("its checksum is"));
    let missing = serve(&data, &[Answer::Status("404 Not Found")]).0;
    assert!(message(&[missing]).contains("the server answers 404"));
    let refused = message(&["http://127.0.0.1:1/".into()]);
    assert!(refused.to_lowercase().contains("refused"), "{refused}");
    let stuck = serve(&data, &[Answer::Cut(10); 9]).0;
    assert!(!message(&[stuck]).is_empty());
    // The second address is used if the first fails.
    let urls = ["http://127.0.0.1:1/".into(), serve(&data, &[Answer::Whole]).0];
    fetch(&remote(&urls, &data), dir.path(), &mut |_| {}).unwrap();
}

#[test]
fn two_downloads_of_a_file_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let other = File::create(dir.path().join("file.bin.part")).unwrap();
    other.lock().unwrap();
    let message = fetch(&remote(&[], b""), dir.path(), &mut |_| {}).unwrap_err().to_string();
    assert!(message.contains("one in progress"), "{message}");
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = vec![];
    for (name, bytes) in members {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
        header[156] = b'0';
        out.extend(header);
        out.extend(*bytes);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.extend([0; 1024]);
    let mut gz = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    gz.write_all(&out).unwrap();
    gz.finish().unwrap()
}

#[test]
fn an_archive_yields_only_the_requested_files() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar.gz");
    let members: [(&str, &[u8]); 4] =
        [("x/readme", b"hello"), ("../../evil", b"!"), ("x/a.bin", &[1; 700]), ("x/b.bin", &[2])];
    std::fs::write(&archive, tar(&members)).unwrap();
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    unpack(&archive, &["a.bin", "b.bin"], &out).unwrap();
    assert_eq!(std::fs::read(out.join("a.bin")).unwrap(), [1; 700]);
    assert_eq!(std::fs::read(out.join("b.bin")).unwrap(), [2]);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 2);
    let message = |bytes: &[u8], files: &[&str]| {
        std::fs::write(&archive, bytes).unwrap();
        unpack(&archive, files, &out).unwrap_err().to_string()
    };
    let whole = tar(&members);
    assert!(message(&whole, &["c.bin"]).contains("received 0 of them"));
    assert!(message(&whole[..whole.len() / 2], &["a.bin", "b.bin"]).contains("a.tar.gz"));
    assert!(message(b"no gzip", &["a.bin"]).contains("0 of them"));
}

#[test]
fn without_a_network_the_message_says_what_to_do() {
    use crate::datasets::fetch::Published;
    let (dir, data) = (tempfile::tempdir().unwrap(), data());
    let remotes = vec![remote(&["http://127.0.0.1:1/".into()], &data)].leak();
    let set = Published {
        name: "some-set",
        folder: "some",
        files: &["file.bin"],
        remotes,
        is_archive: false,
        missing: |dir| {
            let there = dir.join("file.bin").exists();
            if there { vec![] } else { vec!["file.bin".into()] }
        },
    };
    let message = set.fetch(dir.path(), &mut |_| {}).unwrap_err().to_string();
    let place = format!("put file.bin into {}", dir.path().join("some").display());
    assert!(message.starts_with("dataset 'some-set' was not found and cannot be downloaded ("));
    assert!(message.contains(&place) && message.contains("from http://127"), "{message}");
}
