import ApusCore
import CApusCrypto
package import Foundation

/// A certificate (RFC 5280), with what is read of it. Whom to trust is decided by libssl alone (ApusTLS).
package struct Certificate: Sendable {
    /// A DNS name, address or URI for which a certificate is valid (RFC 5280 §4.2.1.6).
    package enum AlternativeName: Sendable {
        case dns(String)
        /// In network byte order: 4 or 16 bytes in certificates that keep to the standard.
        case address([UInt8])
        case uri(String)
    }

    /// A private key of any kind that signs certificates: of P-256 and other curves, of RSA, or Ed25519.
    package struct PrivateKey: Sendable {
        let handle: KeyHandle

        package init(_ key: P256.Signing.PrivateKey) { handle = key.handle }

        /// Reads a PEM text with this key and nothing else: `PRIVATE KEY` (PKCS#8), `EC PRIVATE KEY` (SEC 1) or
        /// `RSA PRIVATE KEY` (PKCS#1).
        ///
        /// - Throws: ``CryptoError/malformed(_:)``.
        package init(pemRepresentation: String) throws(CryptoError) {
            handle = try KeyHandle.read(pem: pemRepresentation, isPrivate: true)
        }
    }

    package let derRepresentation: [UInt8]
    /// The serial number in lower-case hexadecimal digits, without leading zeros.
    package let serial: String
    package let notBefore: Date
    package let notAfter: Date
    /// Names of other kinds are left out. Nil if the extension cannot be read.
    package let alternativeNames: [AlternativeName]?

    /// - Throws: ``CryptoError/malformed(_:)`` if the bytes are not one certificate.
    package init(derRepresentation bytes: [UInt8]) throws(CryptoError) {
        let handle = try CertificateHandle(bytes)
        derRepresentation = bytes
        serial = handle.serial
        (notBefore, notAfter) = handle.validity
        alternativeNames = handle.alternativeNames
    }

    /// True if it was signed with the private key of another certificate.
    package func isSigned(by issuer: Certificate) -> Bool {
        guard let own = try? CertificateHandle(derRepresentation),
            let other = try? CertificateHandle(issuer.derRepresentation)
        else { return false }
        return apus_certificate_is_signed_by(own.pointer, other.pointer) == 1
    }

    /// Lines of 64 characters, without a line feed at the end.
    package var pemRepresentation: String {
        let options: Data.Base64EncodingOptions = [.lineLength64Characters, .endLineWithLineFeed]
        let content = Data(derRepresentation).base64EncodedString(options: options)
        return "-----BEGIN CERTIFICATE-----\n\(content)\n-----END CERTIFICATE-----"
    }
}

/// A certificate of libcrypto, while it is read.
struct CertificateHandle: ~Copyable {
    // SAFETY: created in `init`, freed in `deinit`; a value that cannot be copied has one user.
    let pointer: OpaquePointer

    init(_ bytes: [UInt8]) throws(CryptoError) {
        var reason = Reason()
        guard let pointer = apus_certificate_read(bytes, bytes.count, &reason.text, reason.text.count) else {
            throw .malformed(reason.words)
        }
        self.pointer = pointer
    }

    deinit { apus_certificate_free(pointer) }

    var serial: String {
        let bytes = [UInt8](unsafeUninitializedCapacity: Int(APUS_SERIAL_SIZE_MAX)) { bytes, count in
            // SAFETY: the array has room for a serial number.
            count = apus_certificate_serial(pointer, bytes.baseAddress, bytes.count)
        }
        let digits = Hexadecimal.text(bytes).drop { $0 == "0" }
        return digits.isEmpty ? "0" : String(digits)
    }

    var validity: (notBefore: Date, notAfter: Date) {
        var (notBefore, notAfter): (Int64, Int64) = (0, 0)
        // `apus_certificate_read` has checked both.
        _ = apus_certificate_validity(pointer, &notBefore, &notAfter)
        return (
            Date(timeIntervalSince1970: TimeInterval(notBefore)), Date(timeIntervalSince1970: TimeInterval(notAfter))
        )
    }

    var alternativeNames: [Certificate.AlternativeName]? {
        var names: [Certificate.AlternativeName] = []
        let isRead = withUnsafeMutablePointer(to: &names) { names in
            apus_certificate_names(pointer, names) { owner, kind, bytes, count in
                // SAFETY: the owner is `names`, which outlives the call; the bytes are valid within this one.
                let text = UnsafeBufferPointer(start: bytes, count: count)
                let name: Certificate.AlternativeName =
                    switch kind {
                    case APUS_NAME_DNS: .dns(String(decoding: text, as: UTF8.self))
                    case APUS_NAME_URI: .uri(String(decoding: text, as: UTF8.self))
                    default: .address([UInt8](text))
                    }
                owner?.assumingMemoryBound(to: [Certificate.AlternativeName].self).pointee.append(name)
            }
        }
        return isRead == 1 ? names : nil
    }
}
