package import ApusCore
import SwiftProtobuf

/// Descriptions of a version by language (IV-E1). Pure.
package enum FirmwareLanguage {
    /// The language if neither the request nor the device names one.
    package static let standard = "en"
    /// Descriptions of a version.
    package static let countMax = 16
    /// The longest description, in bytes.
    package static let textByteCountMax = 2048
    /// The longest tag, in bytes.
    static let tagByteCountMax = 35

    /// Checks the descriptions of a new version.
    ///
    /// - Throws: 21031 for a tag that is none, or two of one language; 10002 for too many or too long ones.
    package static func check(_ descriptions: [FirmwareDescription]) throws(ApusError) {
        guard descriptions.count <= countMax else {
            throw ApusError(.frameTooLarge, "a version has at most \(countMax) descriptions")
        }
        var seen: Set<String> = []
        for description in descriptions {
            guard isTag(description.language), seen.insert(description.language.lowercased()).inserted else {
                throw ApusError(.badParameter, "each description needs a language of its own, such as de or pt-BR")
            }
            guard description.text.utf8.count <= textByteCountMax else {
                throw ApusError(.frameTooLarge, "a description has at most \(textByteCountMax) bytes")
            }
        }
    }

    /// True for 1 to 35 letters, digits and `-`, as a tag of RFC 5646 has them.
    package static func isTag(_ text: String) -> Bool {
        (1...tagByteCountMax).contains(text.utf8.count)
            && text.utf8.allSatisfy { byte in
                switch byte {
                case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                    UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"):
                    true
                default: false
                }
            }
    }

    /// The description in the language, else in the same primary language, else in English, else the first; empty if
    /// there is none. Upper and lower case are the same.
    package static func choose(_ language: String, of descriptions: [FirmwareDescription]) -> String {
        for wanted in [language, standard] {
            if let found = best(wanted.lowercased(), of: descriptions) { return found.text }
        }
        return descriptions.first?.text ?? ""
    }

    private static func best(_ tag: String, of descriptions: [FirmwareDescription]) -> FirmwareDescription? {
        let primary = primary(of: tag)
        return descriptions.first { $0.language.lowercased() == tag }
            ?? descriptions.first { $0.language.lowercased() == primary }
            ?? descriptions.first { Self.primary(of: $0.language.lowercased()) == primary }
    }

    private static func primary(of tag: String) -> String {
        String(tag.prefix { $0 != "-" })
    }
}
