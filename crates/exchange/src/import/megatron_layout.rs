//! Megatron-LM's layout string: stages apart by `|`, `E` for the embedding, `t` for a layer, `L` for the head
//! with the loss, `x*n` and `(...)*n` for what is repeated.

/// The cuts that a layout string makes of so many layers.
pub(super) fn cuts_of_layout(layout: &str, layers: usize) -> Result<Vec<usize>, String> {
    let expanded = expanded(&layout.replace([',', ' '], ""))?;
    let mut cuts = vec![0];
    let mut block = 0;
    for stage in expanded.split('|') {
        if let Some(other) = stage.chars().find(|letter| !"EtL".contains(*letter)) {
            return Err(format!(
                "stages are E (embedding), t (layers) and L (head with loss), not {other}"
            ));
        }
        block += stage.len();
        cuts.push(block);
    }
    let letters = expanded.replace('|', "");
    if letters != format!("E{}L", "t".repeat(layers)) {
        return Err(format!("it is E, {layers} times t, and L, in this order"));
    }
    Ok(cuts)
}

/// A layout with `(...)*n` and `x*n` written out.
fn expanded(layout: &str) -> Result<String, String> {
    const MOST: usize = 1 << 20;
    let count = |text: &str| -> Result<(usize, usize), String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number = text[..digits].parse().map_err(|_| "a number follows each *".to_owned())?;
        Ok((number, digits))
    };
    let mut text = String::new();
    let mut rest = layout;
    while let Some(letter) = rest.chars().next() {
        let (piece, after) = match letter {
            '(' => {
                let end = rest.find(')').ok_or("a parenthesis is not closed")?;
                (&rest[1..end], &rest[end + 1..])
            }
            _ => rest.split_at(letter.len_utf8()),
        };
        let (times, used) = match after.strip_prefix('*') {
            Some(number) => {
                let (times, digits) = count(number)?;
                (times, digits + 1)
            }
            None => (1, 0),
        };
        let piece = if letter == '(' { expanded(piece)? } else { piece.to_owned() };
        if text.len() + piece.len().saturating_mul(times) > MOST {
            return Err("it has more layers than any model".into());
        }
        text += &piece.repeat(times);
        rest = &after[used..];
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_as_megatron_writes_them() {
        let cuts = |layout, layers| cuts_of_layout(layout, layers).expect("a layout");
        assert_eq!(cuts("Et*3|(tt|)*2L", 7), [0, 4, 6, 8, 9]);
        assert_eq!(cuts("E,t|t*2|tL", 4), [0, 2, 4, 6]);
        assert_eq!(cuts("E|t|t|L", 2), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn layouts_of_other_layers_are_refused() {
        for wrong in
            ["Ett|tL", "Ettm|tttL", "E(tt|ttL", "Et*x|ttL", "tttE|tL", "E|tttt", "Et*99999999L"]
        {
            cuts_of_layout(wrong, 4).expect_err(wrong);
        }
    }

    #[test]
    fn repetitions_of_more_layers_than_any_model_has_are_refused() {
        for layout in ["Et*1048577L", "E(t*1024)*1024L", "E(t|)*600000L", "t*18446744073709551615"]
        {
            let error = cuts_of_layout(layout, 2).expect_err(layout);
            assert!(error.contains("more layers than any model"), "{layout}: {error}");
        }
        let many = cuts_of_layout("Et*1000|(t|)*999tL", 2000).expect("a layout");
        assert_eq!((many.len(), many[1], many.last()), (1002, 1001, Some(&2002)));
    }

    /// Whether in one piece or in several, of which none is too long.
    #[test]
    fn a_layout_may_be_as_long_as_2_to_the_20_letters_and_no_longer() {
        let refusal = |layout: &str| cuts_of_layout(layout, 3).expect_err("it has more layers");
        let most = 1 << 20;
        for layout in [
            |layers: usize| format!("Et*{layers}L"),
            |layers: usize| format!("Et*{}t*{}L", layers / 2, layers - layers / 2),
            |layers: usize| format!("E(t)*{}(tt)*{}L", layers - layers / 4 * 2, layers / 4),
            |layers: usize| format!("E(t*{}t*{})*1L", layers / 2, layers - layers / 2),
        ] {
            let wrong = layout(most - 2);
            assert_eq!(refusal(&wrong), "it is E, 3 times t, and L, in this order", "{wrong}");
            let long = layout(most - 1);
            assert_eq!(refusal(&long), "it has more layers than any model", "{long}");
        }
    }
}
