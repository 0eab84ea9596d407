//! Maps of characters as sentencepiece has them in its models: texts, by keys of bytes in a double-array trie
//! (Yata et al. 2007, as in Darts). The library that follows them panics at those that lead out of themselves.

use std::collections::VecDeque;

use serde_json::Value;

/// A unit of the trie.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    /// Whether a key ends here, of which the unit at `offset` has the value.
    fn has_leaf(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    /// Where the text of a key begins, if this is its value.
    fn value(self) -> usize {
        (self.0 & !(1 << 31)) as usize
    }

    /// The byte by which one comes here; none for values.
    fn label(self) -> u32 {
        self.0 & (1 << 31 | 0xff)
    }

    /// From this unit's index to those of units behind it, which differ in the last byte by their labels.
    fn offset(self) -> usize {
        ((self.0 >> 10) << ((self.0 & 1 << 9) >> 6)) as usize
    }
}

/// A map: the length of its trie in bytes, the trie, and texts with a 0 behind each.
struct Map<'a> {
    units: Vec<Unit>,
    texts: &'a str,
}

impl<'a> Map<'a> {
    fn read(bytes: &'a [u8]) -> Result<Map<'a>, String> {
        let (length, rest) = bytes.split_first_chunk().ok_or("it has no length")?;
        let length = u32::from_le_bytes(*length) as usize / 4 * 4;
        let (units, texts) = rest.split_at_checked(length).ok_or_else(|| {
            format!("its trie has {length} bytes, of which {} are there", rest.len())
        })?;
        let texts = str::from_utf8(texts).map_err(|error| format!("its texts: {error}"))?;
        let units = units.as_chunks().0.iter().map(|&unit| Unit(u32::from_le_bytes(unit)));
        Ok(Map { units: units.collect(), texts })
    }

    /// The index of a unit that `from` leads to, where all that differ from it in the last byte exist.
    fn behind(&self, index: usize, from: Unit) -> Result<usize, String> {
        let behind = index ^ from.offset();
        match self.units.get(behind | 0xff) {
            Some(_) => Ok(behind),
            None => Err(format!(
                "unit {index} of its trie leads to unit {behind} of {}",
                self.units.len()
            )),
        }
    }

    /// The text of a value.
    fn text(&self, value: usize) -> Result<&str, String> {
        let rest = self.texts.get(value..);
        let rest = rest.ok_or_else(|| format!("none of its texts begins at byte {value}"))?;
        Ok(rest.split('\0').next().unwrap_or_default())
    }

    /// The most bytes that a byte of a key becomes, of the shortest key where there are several for a text.
    fn most(&self) -> Result<f64, String> {
        let root = self.units.first().ok_or("its trie is empty")?;
        let root = self.behind(0, *root)?;
        let mut met = vec![false; self.units.len()];
        met[root] = true;
        let (mut open, mut most) = (VecDeque::from([(root, 1_usize)]), 1.0_f64);
        while let Some((at, key_bytes)) = open.pop_front() {
            for label in 1..=255 {
                let index = at ^ label as usize;
                let unit = self.units[index];
                if unit.label() != label {
                    continue;
                }
                let behind = self.behind(index, unit)?;
                if unit.has_leaf() {
                    let text = self.text(self.units[behind].value())?;
                    most = most.max(text.len() as f64 / key_bytes as f64);
                }
                if !met[behind] {
                    met[behind] = true;
                    open.push_back((behind, key_bytes + 1));
                }
            }
        }
        Ok(most)
    }
}

/// How many times as long a map makes a text at most, from its base64 as in files of tokenizers.
///
/// # Errors
///
/// What is wrong with it, such as a trie that leads out of itself.
pub(crate) fn most_growth(map: &str) -> Result<f64, String> {
    let bytes = base64::decode(map).map_err(|error| format!("it is no base64: {error}"))?;
    Map::read(&bytes)?.most()
}

/// What is wrong with the maps of a tokenizer.json, if something is.
pub(crate) fn fault(tokenizer: &Value) -> Option<String> {
    fn within(value: &Value) -> Option<String> {
        match value {
            Value::Object(keys) => keys.iter().find_map(|(key, value)| match value {
                Value::String(map) if key == "precompiled_charsmap" => {
                    most_growth(map).err().map(|error| format!("its precompiled_charsmap: {error}"))
                }
                _ => within(value),
            }),
            Value::Array(values) => values.iter().find_map(within),
            _ => None,
        }
    }
    within(tokenizer.get("normalizer")?)
}

/// Maps for tests.
#[cfg(test)]
pub(crate) mod example {
    /// The map, in base64, of characters of one byte to texts.
    pub(crate) fn map(texts: &[(u8, &str)]) -> String {
        // The root leads to units 0 to 255, each key's unit to the next 256.
        let mut units = vec![0_u32; 256 * (1 + texts.len())];
        let mut all = String::new();
        for (place, (key, text)) in texts.iter().enumerate() {
            let behind = 256 * (1 + place as u32);
            units[*key as usize] = (*key as u32 ^ behind) << 10 | 1 << 8 | u32::from(*key);
            units[behind as usize] = 1 << 31 | all.len() as u32;
            all += &format!("{text}\0");
        }
        in_base64(&units, &all)
    }

    pub(crate) fn in_base64(units: &[u32], texts: &str) -> String {
        let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(texts.as_bytes());
        base64::encode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::example::{in_base64, map};
    use super::*;

    #[test]
    fn a_map_makes_a_byte_what_its_longest_text_is_by_the_bytes_of_its_key() {
        assert_eq!(most_growth(&map(&[])), Ok(1.0));
        assert_eq!(most_growth(&map(&[(b'a', "abcdef"), (b'b', "é")])), Ok(6.0));
        // `ab` becomes six bytes, by a unit behind that of `a`.
        let mut units = vec![0_u32; 768];
        units[usize::from(b'a')] = (u32::from(b'a') ^ 256) << 10 | u32::from(b'a');
        let of_b = 256 ^ usize::from(b'b');
        units[of_b] = (of_b as u32 ^ 512) << 10 | 1 << 8 | u32::from(b'b');
        units[512] = 1 << 31;
        assert_eq!(most_growth(&in_base64(&units, "abcdef\0")), Ok(3.0));
    }

    #[test]
    fn maps_that_lead_out_of_themselves_are_refused() {
        let refused = |map: String, hint: &str| {
            let error = most_growth(&map).expect_err("refused");
            assert!(error.contains(hint), "{error}");
        };
        refused("?".to_owned(), "no base64");
        refused(base64::encode([1]), "no length");
        refused(base64::encode(u32::MAX.to_le_bytes()), "of which 0 are there");
        refused(in_base64(&[], "a\0"), "empty");
        refused(in_base64(&[0], "a\0"), "unit 0 of its trie leads to unit 0 of 1");
        refused(in_base64(&[256 << 10; 256], ""), "leads to unit 256 of 256");
        let mut units = vec![0_u32; 512];
        units[97] = (97 ^ 256) << 10 | 1 << 8 | 97;
        units[256] = 7;
        refused(in_base64(&units, "abc\0"), "begins at byte 7");
        units[256] = 1;
        refused(in_base64(&units, "é\0"), "begins at byte 1");
        // A circle ends.
        let mut units = vec![0_u32; 256];
        units[97] = 97 << 10 | 97;
        assert_eq!(most_growth(&in_base64(&units, "")), Ok(1.0));
        let tokenizer = json!({"normalizer": {"normalizers": [{"precompiled_charsmap": "AA=="}]}});
        assert!(fault(&tokenizer).is_some_and(|fault| fault.contains("no length")));
    }
}
