//! The secret shared by all workers of a job, and proofs of knowing it.

use crate::error::{Error, Result};
use crate::workers::SECRET;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The minimum length, and the minimum length that can hold 128 random bits (22 characters in base64; in
/// hexadecimal it takes 32).
const MIN_CHARS: usize = 16;
const STRONG_CHARS: usize = 22;
/// The command that generates a secret.
const COMMAND: &str = "openssl rand -hex 16";

/// Random bytes that are never used twice.
pub(super) type Nonce = [u8; 32];
pub(super) type Proof = [u8; 32];

/// The secret itself; it is neither printed nor sent.
#[derive(Clone)]
pub(super) struct Secret(Vec<u8>);

impl Secret {
    /// Takes the text if it is long enough.
    pub fn new(text: Option<&str>) -> Result<Secret> {
        let length = text.map(|text| text.chars().count());
        match (text, length) {
            (Some(text), Some(MIN_CHARS..)) => Ok(Secret(text.as_bytes().to_vec())),
            (_, length) => {
                let expected =
                    format!("128 random bits, the same on every worker (made by `{COMMAND}`)");
                let received = length.map_or("nothing".into(), |n| format!("{n} characters"));
                Err(Error::argument("launcher", SECRET, expected, received))
            }
        }
    }

    /// A warning about a short secret.
    pub fn weakness_warning(&self) -> Option<String> {
        let length = String::from_utf8_lossy(&self.0).chars().count();
        let words = "fewer than hold 128 random bits; make it by";
        (length < STRONG_CHARS)
            .then(|| format!("{SECRET} has {length} characters, {words} `{COMMAND}`"))
    }

    fn mac(&self, who: &[u8; 6], nonces: [&Nonce; 2], fields: &[u8]) -> Hmac<Sha256> {
        // Keys may have any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        mac.update(who);
        nonces.iter().for_each(|nonce| mac.update(&nonce[..]));
        mac.update(fields);
        mac
    }

    /// Proves that `who` knows the secret and sent these fields in reply to these nonces.
    pub(super) fn proof(&self, who: &[u8; 6], nonces: [&Nonce; 2], fields: &[u8]) -> Proof {
        self.mac(who, nonces, fields).finalize().into_bytes().into()
    }

    /// Verifies a proof in constant time.
    pub(super) fn verify(
        &self,
        who: &[u8; 6],
        nonces: [&Nonce; 2],
        fields: &[u8],
        proof: &Proof,
    ) -> bool {
        self.mac(who, nonces, fields).verify_slice(proof).is_ok()
    }
}

/// Generates a nonce from the system's source of randomness.
pub(super) fn nonce() -> Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(super::rendezvous_error)?;
    Ok(nonce)
}
