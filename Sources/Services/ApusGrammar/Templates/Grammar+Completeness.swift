import ApusCore

extension Grammar {
    /// True if no sentence that begins with this one has another meaning: what may follow can only name the area of a
    /// device that is named already. "Turn on the hall lamp" is complete. "Open the blinds" is not, since "to forty
    /// percent" may follow, and "turn on the lamp" is not where another device is called "lamp two".
    ///
    /// False for every sentence of a language other than English: in Chinese the device stands before what it should
    /// do, so nearly every sentence is the beginning of another one. False as well where others have added sentences to
    /// those of ``VoiceTemplates``: what may follow is not known then.
    ///
    /// - Parameter text: without white space at its end.
    package func isComplete(_ text: String) -> Bool {
        guard templates.language.numbers == .english, !templates.isExtended else { return false }
        let matches = match(text).all
        return !matches.isEmpty && matches.allSatisfy { isComplete($0, byteCount: text.utf8.count) }
    }

    private func isComplete(_ match: GrammarMatch, byteCount: Int) -> Bool {
        switch VoiceIntent(rawValue: match.intent) {
        case .timeGet, .dateGet, .repeatReply, .help, .callAnswer, .callDecline, .callEnd:
            return true
        case .deviceOn, .deviceOff, .deviceLock, .deviceUnlock:
            // "Turn the lamp on" may go on with "the kitchen off".
            guard let name = match.slot(VoiceSlot.name.rawValue), !name.isAmbiguous,
                name.range?.upperBound == byteCount
            else { return false }
            return !name.candidates.contains { tables.beginnings.contains(ExactText($0.text.lowercased())) }
        default:
            return false
        }
    }
}
