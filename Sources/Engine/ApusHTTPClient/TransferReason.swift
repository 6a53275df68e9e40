#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The reason that libcurl gives for a transfer that failed, as words for people.
package enum TransferReason {
    /// The sentence without OpenSSL's version and numbers.
    ///
    /// OpenSSL puts them before its words: of `OpenSSL/3.0.19: error:0A00010B:SSL routines::wrong version number` the
    /// words are `wrong version number`. Words before the numbers stay, as those of `TLS connect error: error:…`.
    package static func words(of sentence: String) -> String {
        guard let numbers = sentence.firstMatch(of: /error:[0-9A-Fa-f]+:/) else { return sentence }
        let rest = sentence[numbers.range.upperBound...]
        let words = rest[(rest.ranges(of: "::").last?.upperBound ?? rest.startIndex)...].trimmingPrefix(" ")
        let before = sentence[..<numbers.range.lowerBound]
        // A version has digits; a sentence of libcurl that is cut here has none.
        guard !before.contains(where: \.isNumber), before.contains(where: \.isLetter) else { return String(words) }
        return String(before + words)
    }

    /// What the system calls an error, such as "connection refused".
    package static func words(ofSystem number: CInt) -> String {
        guard let text = strerror(number) else { return "error \(number) of the system" }
        let words = String(cString: text)
        return words.prefix(1).lowercased() + words.dropFirst()
    }
}
