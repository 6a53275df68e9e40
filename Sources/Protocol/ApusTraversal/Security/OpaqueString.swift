import Foundation

/// The OpaqueString profile of PRECIS (RFC 8265 §4.2), for user names: two names are equal if their prepared bytes are.
///
/// Non-ASCII spaces become the ASCII space, and the text is put into normalization form C. Letter case and width stay.
/// Refused are empty text and what the FreeformClass disallows (RFC 8264 §4.3, §9): control characters, default
/// ignorable and unassigned code points, private use, line and paragraph separators, conjoining jamo. Code points that
/// are valid only in some contexts (joiners) are refused too.
enum OpaqueString {
    /// The prepared text; nil if the profile refuses it.
    static func prepare(_ text: String) -> String? {
        guard !text.isEmpty else { return nil }
        if text.utf8.allSatisfy({ (0x20...0x7e).contains($0) }) { return text }
        var mapped = String.UnicodeScalarView()
        for scalar in text.unicodeScalars {
            guard isAllowed(scalar) else { return nil }
            mapped.append(scalar.properties.generalCategory == .spaceSeparator ? " " : scalar)
        }
        return String(mapped).precomposedStringWithCanonicalMapping
    }

    private static func isAllowed(_ scalar: Unicode.Scalar) -> Bool {
        let properties = scalar.properties
        guard !properties.isDefaultIgnorableCodePoint, !properties.isNoncharacterCodePoint,
            !properties.isJoinControl
        else { return false }
        switch scalar.value {
        // Old Hangul jamo (RFC 8264 §9.9).
        case 0x1100...0x11FF, 0xA960...0xA97F, 0xD7B0...0xD7FF: return false
        default: break
        }
        switch properties.generalCategory {
        case .control, .format, .surrogate, .privateUse, .unassigned, .lineSeparator, .paragraphSeparator: return false
        default: return true
        }
    }
}
