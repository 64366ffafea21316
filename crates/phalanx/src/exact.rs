//! Numbers in JSON that come back bit for bit. JSON has no NaN and no infinity: those travel as
//! words.

use serde::{Deserialize, Serialize};

/// A number that survives JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub(crate) struct Exact(pub f64);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Finite(f64),
    Other(String),
}

impl From<Exact> for Written {
    fn from(Exact(value): Exact) -> Written {
        match value.is_finite() {
            true => Written::Finite(value),
            false => Written::Other(value.to_string()),
        }
    }
}

impl TryFrom<Written> for Exact {
    type Error = std::num::ParseFloatError;

    fn try_from(written: Written) -> Result<Exact, Self::Error> {
        match written {
            Written::Finite(value) => Ok(Exact(value)),
            Written::Other(word) => word.parse().map(Exact),
        }
    }
}

/// For `#[serde(with = "…")]` on tables of series.
pub(crate) mod series {
    use super::Exact;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub(crate) fn serialize<S: Serializer>(
        values: &BTreeMap<String, Vec<f64>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let exact = |v: &Vec<f64>| v.iter().copied().map(Exact).collect::<Vec<_>>();
        serializer.collect_map(values.iter().map(|(name, v)| (name, exact(v))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Vec<f64>>, D::Error> {
        let series = BTreeMap::<String, Vec<Exact>>::deserialize(deserializer)?;
        let plain = |(name, v): (String, Vec<Exact>)| (name, v.into_iter().map(|e| e.0).collect());
        Ok(series.into_iter().map(plain).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_as_it_was() {
        let numbers =
            [0.1, -0.0, 1e308, 5e-324, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0 / 3.0];
        for number in numbers {
            let text = serde_json::to_string(&Exact(number)).unwrap();
            let Exact(back) = serde_json::from_str(&text).unwrap();
            assert!(back.to_bits() == number.to_bits() || back.is_nan() && number.is_nan());
        }
        assert!(serde_json::from_str::<Exact>("\"many\"").is_err());
        assert!(serde_json::from_str::<Exact>("[]").is_err());
    }
}
