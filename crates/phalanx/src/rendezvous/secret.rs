//! The secret that all workers of a job share, and proofs of knowing it.

use crate::error::{Error, Result};
use crate::workers::SECRET;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Fewest characters of it.
const FEWEST: usize = 16;

/// Bytes that are never used twice.
pub(super) type Nonce = [u8; 32];
pub(super) type Proof = [u8; 32];

/// Neither printed nor sent.
#[derive(Clone)]
pub(super) struct Secret(Vec<u8>);

impl Secret {
    /// The text, where it is long enough.
    pub fn new(text: Option<&str>) -> Result<Secret> {
        let wrong = |received: String| {
            let expected = format!("a secret of {FEWEST} characters or more, the same everywhere");
            Err(Error::argument("launcher", SECRET, expected, received))
        };
        match text {
            None => wrong("nothing".into()),
            Some(text) if text.chars().count() < FEWEST => {
                wrong(format!("{} characters", text.chars().count()))
            }
            Some(text) => Ok(Secret(text.as_bytes().to_vec())),
        }
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
