import ApusCore

/// The code that a device shows and a person types (RFC 8628 §6.1): eight letters of 20, which are no vowels, so that
/// no code is a word. There are 2.56 × 10^10 of them.
///
/// Pure value.
package struct UserCode: Sendable, Hashable, CustomStringConvertible {
    private static let alphabet = Array("BCDFGHJKLMNPQRSTVWXZ".utf8)
    /// The letters of a code.
    package static let letterCount = 8

    /// Without the hyphen, in upper case.
    package let letters: String

    /// Makes a code of what a person has typed. Case, spaces and hyphens have no meaning; nil for another text.
    package init?(_ text: String) {
        guard text.utf8.count <= 4 * Self.letterCount else { return nil }
        var letters: [UInt8] = []
        for byte in text.utf8 where byte != UInt8(ascii: "-") && byte != UInt8(ascii: " ") {
            let letter = (UInt8(ascii: "a")...UInt8(ascii: "z")).contains(byte) ? byte - 32 : byte
            guard Self.alphabet.contains(letter) else { return nil }
            letters.append(letter)
        }
        guard letters.count == Self.letterCount else { return nil }
        self.letters = String(decoding: letters, as: UTF8.self)
    }

    /// A random code.
    package init(using generator: inout some RandomNumberGenerator) {
        let letters = (0..<Self.letterCount).map { _ in
            Self.alphabet[Int.random(in: 0..<Self.alphabet.count, using: &generator)]
        }
        self.letters = String(decoding: letters, as: UTF8.self)
    }

    /// As it is shown: `WDJB-MJHT`.
    package var description: String { "\(letters.prefix(4))-\(letters.suffix(4))" }
}

/// The secret with which a device asks for its token (RFC 8628 §3.2): the user code, under which the record is, and 32
/// random bytes. The record has its hash only.
///
/// Pure value.
package struct DeviceCode: Sendable {
    private static let byteCount = 32

    package let userCode: UserCode
    package let text: String

    /// Nil for a text that is no device code.
    package init?(_ text: String) {
        guard text.utf8.count == UserCode.letterCount + 1 + 2 * Self.byteCount, let dot = text.firstIndex(of: "."),
            let userCode = UserCode(String(text[..<dot])), Hexadecimal.bytes(text[text.index(after: dot)...]) != nil
        else { return nil }
        (self.userCode, self.text) = (userCode, text)
    }

    /// A random one.
    package init(_ userCode: UserCode, using generator: inout some RandomNumberGenerator) {
        let bytes = (0..<Self.byteCount).map { _ in UInt8.random(in: 0...255, using: &generator) }
        self.userCode = userCode
        text = "\(userCode.letters).\(Hexadecimal.text(bytes))"
    }
}
