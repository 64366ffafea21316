//! JSON encoding of floats that round-trips bit for bit. NaN and infinity, which JSON lacks, are encoded
//! as strings.

use serde::{Deserialize, Serialize};

/// A float that round-trips through JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "Encoded", try_from = "Encoded")]
pub(crate) struct JsonFloat(pub f64);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Encoded {
    Finite(f64),
    Other(String),
}

impl From<JsonFloat> for Encoded {
    fn from(JsonFloat(value): JsonFloat) -> Encoded {
        match value.is_finite() {
            true => Encoded::Finite(value),
            false => Encoded::Other(value.to_string()),
        }
    }
}

impl TryFrom<Encoded> for JsonFloat {
    type Error = std::num::ParseFloatError;

    fn try_from(encoded: Encoded) -> Result<JsonFloat, Self::Error> {
        match encoded {
            Encoded::Finite(value) => Ok(JsonFloat(value)),
            Encoded::Other(word) => word.parse().map(JsonFloat),
        }
    }
}

/// For `#[serde(with = "…")]` on maps of series.
pub(crate) mod series {
    use super::JsonFloat;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub(crate) fn serialize<S: Serializer>(
        values: &BTreeMap<String, Vec<f64>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let encode = |v: &Vec<f64>| v.iter().copied().map(JsonFloat).collect::<Vec<_>>();
        serializer.collect_map(values.iter().map(|(name, v)| (name, encode(v))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Vec<f64>>, D::Error> {
        let series = BTreeMap::<String, Vec<JsonFloat>>::deserialize(deserializer)?;
        let plain =
            |(name, v): (String, Vec<JsonFloat>)| (name, v.into_iter().map(|e| e.0).collect());
        Ok(series.into_iter().map(plain).collect())
    }
}

/// For `#[serde(with = "…")]` on maps of series of vectors.
pub(crate) mod vectors {
    use super::JsonFloat;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    type Series<T> = BTreeMap<String, Vec<Vec<T>>>;

    pub(crate) fn serialize<S: Serializer>(
        values: &Series<f64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let encode = |v: &Vec<f64>| v.iter().copied().map(JsonFloat).collect::<Vec<_>>();
        let series = |v: &Vec<Vec<f64>>| v.iter().map(encode).collect::<Vec<_>>();
        serializer.collect_map(values.iter().map(|(name, v)| (name, series(v))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Series<f64>, D::Error> {
        let plain = |v: Vec<JsonFloat>| v.into_iter().map(|e| e.0).collect::<Vec<_>>();
        let series = Series::<JsonFloat>::deserialize(deserializer)?.into_iter();
        Ok(series.map(|(name, v)| (name, v.into_iter().map(plain).collect())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_floats_round_trip() {
        let numbers =
            [0.1, -0.0, 1e308, 5e-324, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0 / 3.0];
        for number in numbers {
            let text = serde_json::to_string(&JsonFloat(number)).unwrap();
            let JsonFloat(back) = serde_json::from_str(&text).unwrap();
            assert!(back.to_bits() == number.to_bits() || back.is_nan() && number.is_nan());
        }
        assert!(serde_json::from_str::<JsonFloat>("\"many\"").is_err());
        assert!(serde_json::from_str::<JsonFloat>("[]").is_err());
    }
}
