//! Downloads that resume after interruptions, are verified by checksum, and appear atomically.

use super::fetch::{Checksum, Remote, Transfer};
use crate::error::{Error, Result};
use crate::saving::open_no_follow;
use sha2::Digest;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum size of a download in bytes.
const MAX_BYTES: u64 = 2 << 30;
/// Timeout of one request. A longer transfer continues in another request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Consecutive requests without progress before giving up.
const MAX_FAILED_ATTEMPTS: usize = 3;
/// Maximum number of requests per file.
const MAX_REQUESTS: usize = 1000;

/// Downloads a file into a directory, where it appears complete and verified or not at all. Returns its
/// path. The data of an interrupted transfer is kept, and the next one resumes from it.
pub(super) fn fetch(
    remote: &Remote<'_>,
    directory: &Path,
    progress: &mut dyn FnMut(&Transfer),
) -> Result<PathBuf> {
    std::fs::create_dir_all(directory).map_err(|e| Error::io(directory, e))?;
    let path = directory.join(remote.file);
    let partial = directory.join(format!("{}.part", remote.file));
    let fail = |e| Error::io(&partial, e);
    let mut file = open_no_follow(&partial)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::file(&partial, "no other download of it", "one in progress"));
        }
        Err(TryLockError::Error(e)) => return Err(fail(e)),
    }
    if path.exists() {
        // Another process has completed the download meanwhile.
        let _ = std::fs::remove_file(&partial);
        return Ok(path);
    }
    let mut reason = String::new();
    for url in remote.urls {
        let url = match url.ends_with('/') {
            true => format!("{url}{}", remote.file),
            false => url.to_string(),
        };
        if let Err(e) = transfer(&url, &mut file, remote.file, progress) {
            reason = format!("{url}: {e}");
            continue;
        }
        file.sync_all().map_err(fail)?;
        match verify(&mut file, remote.checksum).map_err(fail)? {
            Ok(()) => {
                move_into_place(&partial, &path)?;
                return Ok(path);
            }
            Err(found) => {
                file.set_len(0).map_err(fail)?;
                reason = format!("{url}: its checksum is {found}");
            }
        }
    }
    Err(Error::file(&path, "a download", reason))
}

/// Renames a finished file and syncs the directory, so that the name survives a crash.
fn move_into_place(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(|e| Error::io(to, e))?;
    let directory = to.parent().unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|e| Error::io(directory, e))
}

/// Appends the missing part of a file, in as many requests as necessary.
fn transfer(
    url: &str,
    file: &mut File,
    name: &str,
    progress: &mut dyn FnMut(&Transfer),
) -> Result<(), String> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .timeout_recv_body(Some(REQUEST_TIMEOUT))
        .http_status_as_error(false)
        .user_agent(concat!("phalanx/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let (mut longest, mut failed_attempts, mut last) = (0, 0, String::new());
    for _ in 0..MAX_REQUESTS {
        let result = request(&agent, url, file, name, progress);
        let len = file.metadata().map_err(|e| e.to_string())?.len();
        match result {
            Ok(()) => return Ok(()),
            Err(Failure::Final(reason)) => return Err(reason),
            Err(Failure::Interrupted(reason)) => {
                failed_attempts = if len > longest { 0 } else { failed_attempts + 1 };
                longest = longest.max(len);
                if failed_attempts >= MAX_FAILED_ATTEMPTS {
                    return Err(reason);
                }
                last = reason;
            }
        }
    }
    Err(last)
}

/// Why a request did not complete the file.
enum Failure {
    /// A retry would not help.
    Final(String),
    /// A retry may continue the transfer.
    Interrupted(String),
}

fn request(
    agent: &ureq::Agent,
    url: &str,
    file: &mut File,
    name: &str,
    progress: &mut dyn FnMut(&Transfer),
) -> Result<(), Failure> {
    let write_failed = |e: std::io::Error| Failure::Final(format!("writing: {e}"));
    let mut offset = file.seek(SeekFrom::End(0)).map_err(write_failed)?;
    let mut request = agent.get(url);
    if offset > 0 {
        request = request.header("Range", format!("bytes={offset}-"));
    }
    let mut response = match request.call() {
        Ok(response) => response,
        Err(ureq::Error::Io(e)) if e.kind() != ErrorKind::ConnectionRefused => {
            return Err(Failure::Interrupted(e.to_string()));
        }
        Err(e) => return Err(Failure::Final(e.to_string())),
    };
    let header = |key: &str| {
        let value = response.headers().get(key)?;
        value.to_str().ok().map(String::from)
    };
    let length = header("content-length").and_then(|v| v.parse::<u64>().ok());
    match response.status().as_u16() {
        200 => {
            file.set_len(0).map_err(write_failed)?;
            offset = file.seek(SeekFrom::Start(0)).map_err(write_failed)?;
        }
        206 => {
            let continues = header("content-range")
                .is_some_and(|range| range.starts_with(&format!("bytes {offset}-")));
            if !continues {
                file.set_len(0).map_err(write_failed)?;
                return Err(Failure::Interrupted("the server sent another part".into()));
            }
        }
        // Nothing is left to download. The checksum decides whether that is true.
        416 if offset > 0 => return Ok(()),
        status => return Err(Failure::Final(format!("the server answers {status}"))),
    }
    let total = length.and_then(|n| n.checked_add(offset));
    let mut transfer = Transfer { file: name.into(), received: offset, total };
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; 1 << 16];
    loop {
        progress(&transfer);
        let n = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(Failure::Interrupted(e.to_string())),
        };
        file.write_all(&buffer[..n]).map_err(write_failed)?;
        transfer.received += n as u64;
        if transfer.received > MAX_BYTES {
            file.set_len(0).map_err(write_failed)?;
            return Err(Failure::Final(format!("more than {MAX_BYTES} bytes")));
        }
    }
    match total {
        Some(total) if transfer.received < total => {
            let received = transfer.received;
            Err(Failure::Interrupted(format!("the connection ended at {received} of {total}")))
        }
        _ => Ok(()),
    }
}

/// Checks a file that is in place.
///
/// # Errors
/// Another checksum, or a file that cannot be read.
pub(crate) fn verify_file(path: &Path, checksum: Checksum<'_>) -> Result<()> {
    let fail = |e| Error::io(path, e);
    let mut file = crate::saving::open_file(path, "a weights file")?;
    let (Checksum::Sha256(expected) | Checksum::Md5(expected)) = checksum else { return Ok(()) };
    match verify(&mut file, checksum).map_err(fail)? {
        Ok(()) => Ok(()),
        Err(found) => {
            Err(Error::file(path, format!("the checksum {expected} of the official file"), found))
        }
    }
}

/// Checks the bytes of a file. On mismatch, returns the checksum found.
fn verify(file: &mut File, checksum: Checksum<'_>) -> std::io::Result<Result<(), String>> {
    file.seek(SeekFrom::Start(0))?;
    let (found, expected) = match checksum {
        Checksum::Sha256(expected) => {
            let mut hash = sha2::Sha256::new();
            std::io::copy(file, &mut hash)?;
            (hexadecimal(&hash.finalize()), expected)
        }
        Checksum::Md5(expected) => {
            let mut hash = md5::Md5::new();
            std::io::copy(file, &mut hash)?;
            (hexadecimal(&hash.finalize()), expected)
        }
        Checksum::Unknown => return Ok(Ok(())),
    };
    Ok(if found == expected { Ok(()) } else { Err(found) })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Extracts the members of a gzipped tar whose base names are listed in `files` to a directory. Paths in
/// the archive are ignored.
pub(super) fn unpack(archive: &Path, files: &[&str], directory: &Path) -> Result<()> {
    let fail = |e| Error::io(archive, e);
    let file = File::open(archive).map_err(fail)?;
    let mut source = flate2::read::MultiGzDecoder::new(std::io::BufReader::new(file));
    let mut header = [0; 512];
    let mut found = 0;
    while found < files.len() {
        if source.read_exact(&mut header).is_err() || header[0] == 0 {
            let expected = format!("an archive with {}", files.join(", "));
            return Err(Error::file(archive, expected, format!("{found} of them")));
        }
        let text = |range: std::ops::Range<usize>| {
            let field = &header[range];
            let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).trim().to_string()
        };
        let (name, size) = (text(0..100), u64::from_str_radix(&text(124..136), 8));
        let Some(size) = size.ok().filter(|size| *size <= MAX_BYTES) else {
            return Err(Error::file(archive, "a tar archive", "a damaged header"));
        };
        let padded = size.next_multiple_of(512);
        let base = name.rsplit('/').next().unwrap_or_default();
        let wanted = files.iter().find(|file| **file == base && [b'0', 0].contains(&header[156]));
        let mut member = (&mut source).take(padded);
        match wanted {
            None => {
                std::io::copy(&mut member, &mut std::io::sink()).map_err(fail)?;
            }
            Some(file) => {
                let partial = directory.join(format!("{file}.part"));
                let wrong = |e| Error::io(&partial, e);
                let mut out = File::create(&partial).map_err(wrong)?;
                let written =
                    std::io::copy(&mut (&mut member).take(size), &mut out).map_err(wrong)?;
                if written != size {
                    return Err(Error::file(archive, "a whole archive", "a truncated one"));
                }
                out.sync_all().map_err(wrong)?;
                std::io::copy(&mut member, &mut std::io::sink()).map_err(fail)?;
                move_into_place(&partial, &directory.join(file))?;
                found += 1;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "download_tests.rs"]
mod tests;
