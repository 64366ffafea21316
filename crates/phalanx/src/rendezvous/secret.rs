//! The secret that all workers of a job share, and proofs of knowing it.

use crate::error::{Error, Result};
use crate::workers::SECRET;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Fewest characters of it, and fewest that can hold 128 random bits (in base64; 32 in hexadecimal).
const FEWEST: usize = 16;
const STRONG: usize = 22;
/// The command that makes one.
const COMMAND: &str = "openssl rand -hex 16";

/// Bytes that are never used twice.
pub(super) type Nonce = [u8; 32];
pub(super) type Proof = [u8; 32];

/// Neither printed nor sent.
#[derive(Clone)]
pub(super) struct Secret(Vec<u8>);

impl Secret {
    /// The text, where it is long enough.
    pub fn new(text: Option<&str>) -> Result<Secret> {
        let length = text.map(|text| text.chars().count());
        match (text, length) {
            (Some(text), Some(FEWEST..)) => Ok(Secret(text.as_bytes().to_vec())),
            (_, length) => {
                let expected =
                    format!("128 random bits, the same on every worker (made by `{COMMAND}`)");
                let received = length.map_or("nothing".into(), |n| format!("{n} characters"));
                Err(Error::argument("launcher", SECRET, expected, received))
            }
        }
    }

    /// What is to be said of a secret that is short.
    pub fn weakness(&self) -> Option<String> {
        let length = String::from_utf8_lossy(&self.0).chars().count();
        let words = "fewer than hold 128 random bits; make it by";
        (length < STRONG).then(|| format!("{SECRET} has {length} characters, {words} `{COMMAND}`"))
    }

    fn mac(&self, who: &[u8; 6], nonces: [&Nonce; 2], fields: &[u8]) -> Hmac<Sha256> {
        // Keys may have any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        mac.update(who);
        nonces.iter().for_each(|nonce| mac.update(&nonce[..]));
        mac.update(fields);
        mac
    }

    /// Shows that `who` knows the secret and sent these fields, in answer to these nonces.
    pub(super) fn proof(&self, who: &[u8; 6], nonces: [&Nonce; 2], fields: &[u8]) -> Proof {
        self.mac(who, nonces, fields).finalize().into_bytes().into()
    }

    /// Whether a proof is one; takes as long whatever it is.
    pub(super) fn proves(
        &self,
        who: &[u8; 6],
        nonces: [&Nonce; 2],
        fields: &[u8],
        proof: &Proof,
    ) -> bool {
        self.mac(who, nonces, fields).verify_slice(proof).is_ok()
    }
}

/// From the system's source of randomness.
pub(super) fn nonce() -> Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(super::failed)?;
    Ok(nonce)
}
