package import ApusCore
import ApusCrypto
package import Foundation

/// What operators and other nodes must know of a certificate.
package struct CertificateFacts: Sendable, Equatable {
    /// The serial number in lower-case hexadecimal digits, without leading zeros.
    package let serial: String
    /// The node that it names; nil if it names none.
    package let node: NodeName?
    package let notBefore: Date
    package let notAfter: Date

    init(_ certificate: Certificate) {
        serial = certificate.serial
        node = NodeCertificate.nodeName(of: certificate)
        (notBefore, notAfter) = (certificate.notBefore, certificate.notAfter)
    }

    /// The certificates of a PEM text, in its order.
    ///
    /// - Parameter source: the file's name, for errors.
    /// - Throws: 10022 if there is none, or one cannot be read.
    package static func all(pem: [UInt8], source: String) throws(ApusError) -> [CertificateFacts] {
        try parsed(pem, source).map(CertificateFacts.init)
    }

    /// The certificates of a file; see ``all(pem:source:)``.
    package static func all(file: String) throws(ApusError) -> [CertificateFacts] {
        let bytes: [UInt8]
        do {
            bytes = try PEMFile.bytes(of: file)
        } catch {
            throw ApusError(.configurationInvalid, "\(file) cannot be read: \(error.localizedDescription)")
        }
        return try all(pem: bytes, source: file)
    }

    private static let beginning = "-----BEGIN CERTIFICATE-----"

    static func parsed(_ pem: [UInt8], _ source: String) throws(ApusError) -> [Certificate] {
        let text = String(decoding: pem, as: UTF8.self)
        let blocks = ClusterPKI.pemBlocks(text).filter { $0.hasPrefix(beginning) }
        guard text.split(whereSeparator: \.isNewline).count(where: { $0.hasPrefix(beginning) }) == blocks.count else {
            throw ApusError(.configurationInvalid, "a certificate in \(source) is not whole")
        }
        let certificates: [Certificate]
        do {
            certificates = try blocks.map { try Certificate(derRepresentation: ClusterPKI.der(of: $0)) }
        } catch {
            throw ApusError(.configurationInvalid, "the certificate in \(source) cannot be read: \(error)")
        }
        guard !certificates.isEmpty else {
            throw ApusError(.configurationInvalid, "there is no certificate in \(source)")
        }
        return certificates
    }

    /// Checks that the certificate is valid now.
    ///
    /// - Throws: 10022 with the time.
    package func checkValidity(at now: Date, source: String) throws(ApusError) {
        guard now < notAfter else {
            throw ApusError(.configurationInvalid, "the certificate in \(source) expired at \(notAfter)")
        }
        // Clocks of the machines that issue and use certificates may differ by some minutes.
        guard now.addingTimeInterval(300) >= notBefore else {
            throw ApusError(.configurationInvalid, "the certificate in \(source) is not valid before \(notBefore)")
        }
    }
}

/// The certificates that must not be accepted any more, by their serial numbers.
package struct RevokedCertificates: Sendable, Equatable {
    /// The most serial numbers of a list.
    package static let countMax = 4096
    /// No certificate.
    package static let none = RevokedCertificates(serials: [])

    private let serials: Set<String>

    package init(serials: Set<String>) { self.serials = serials }

    /// Reads a list: one serial number in hexadecimal digits per line, with or without colons. What follows a `#` is a
    /// comment.
    ///
    /// - Throws: 10022 with the line that is not valid, or if there are too many.
    package init(text: String, source: String) throws(ApusError) {
        var serials: Set<String> = []
        for (index, line) in text.split(separator: "\n", omittingEmptySubsequences: false).enumerated() {
            let content = line.prefix { $0 != "#" }.filter { !$0.isWhitespace && $0 != ":" }.lowercased()
            if content.isEmpty { continue }
            guard content.count <= 64, content.allSatisfy(\.isHexDigit) else {
                throw ApusError(
                    .configurationInvalid, "\(source):\(index + 1): a serial number in hexadecimal digits is expected")
            }
            let digits = content.drop { $0 == "0" }
            serials.insert(digits.isEmpty ? "0" : String(digits))
        }
        guard serials.count <= Self.countMax else {
            throw ApusError(.configurationInvalid, "\(source) has more than \(Self.countMax) serial numbers")
        }
        self.serials = serials
    }

    /// Reads a file; an empty path is an empty list.
    ///
    /// - Throws: 10022 if it cannot be read or is not valid.
    package init(file: String) throws(ApusError) {
        guard !file.isEmpty else {
            self = .none
            return
        }
        let text: String
        do {
            text = try String(contentsOfFile: file, encoding: .utf8)
        } catch {
            throw ApusError(
                .configurationInvalid,
                "the list of revoked certificates \(file) cannot be read: \(error.localizedDescription)")
        }
        try self.init(text: text, source: file)
    }

    package var count: Int { serials.count }

    package func contains(_ certificate: CertificateFacts) -> Bool { contains(serial: certificate.serial) }

    /// - Parameter serial: in lower-case hexadecimal digits.
    package func contains(serial: String) -> Bool { serials.contains(serial) }

    func contains(_ certificate: Certificate) -> Bool {
        !serials.isEmpty && serials.contains(certificate.serial)
    }
}
