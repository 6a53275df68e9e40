import CApusCrypto
package import Foundation

extension Certificate {
    /// What an issuer says in a certificate, beside the subject's key.
    package struct Fields: Sendable {
        /// What the subject's key may be used for.
        package enum Role: Sendable {
            /// Issues certificates of ends, and of no other authorities.
            case authority
            /// Is one end of a connection, or both.
            case end(isServer: Bool, isClient: Bool, names: [AlternativeName])
        }

        package var organization: String
        package var commonName: String
        /// Big-endian, and positive: the highest bit of the first byte is 0.
        package var serial: [UInt8]
        /// Whole seconds count.
        package var notBefore: Date
        package var notAfter: Date
        package var role: Role

        package init(
            organization: String, commonName: String, serial: [UInt8] = Self.randomSerial(), notBefore: Date,
            notAfter: Date, role: Role
        ) {
            (self.organization, self.commonName, self.serial) = (organization, commonName, serial)
            (self.notBefore, self.notAfter, self.role) = (notBefore, notAfter, role)
        }

        /// 20 bytes, the most that are permitted (RFC 5280 §4.1.2.2).
        package static func randomSerial() -> [UInt8] {
            var serial = SymmetricKey.random(byteCount: 20).withUnsafeBytes { [UInt8]($0) }
            serial[0] &= 0x7f
            return serial
        }
    }

    /// Issues a certificate.
    ///
    /// - Parameters:
    ///   - subject: the key for which it is.
    ///   - issuer: nil for an authority's own certificate.
    ///   - issuerKey: the issuer's key, or the subject's own.
    /// - Throws: ``CryptoError/malformed(_:)`` if a name is not ASCII, or ``CryptoError/library(_:)`` if the key cannot
    ///   sign certificates.
    package static func issue(
        _ fields: Fields, subject: P256.Signing.PublicKey, issuer: Certificate?, issuerKey: PrivateKey
    ) throws(CryptoError) -> Certificate {
        var native = NativeFields(fields)
        if case .end(let isServer, let isClient, let names) = fields.role {
            native.fields.is_authority = 0
            (native.fields.is_server, native.fields.is_client) = (isServer ? 1 : 0, isClient ? 1 : 0)
            for name in names { try native.add(name) }
        }
        guard let issuer else { return try issue(native, subject, nil, issuerKey) }
        let handle = try CertificateHandle(issuer.derRepresentation)
        return try issue(native, subject, handle.pointer, issuerKey)
    }

    private static func issue(
        _ native: NativeFields, _ subject: P256.Signing.PublicKey, _ issuer: OpaquePointer?, _ issuerKey: PrivateKey
    ) throws(CryptoError) -> Certificate {
        var fields = native.fields
        var reason = Reason()
        var der: UnsafeMutablePointer<UInt8>?
        let count = apus_certificate_issue(
            &fields, native.names, native.bytes, subject.handle.pointer, issuer, issuerKey.handle.pointer, &der,
            &reason.text, reason.text.count)
        defer { apus_bytes_free(der) }
        guard count > 0 else { throw .library(reason.words) }
        // SAFETY: libcrypto wrote so many bytes.
        return try Certificate(derRepresentation: [UInt8](UnsafeBufferPointer(start: der, count: count)))
    }
}

/// The fields of a certificate in the form of the C function.
private struct NativeFields {
    var fields = apus_certificate_fields()
    private(set) var names: [apus_name] = []
    private(set) var bytes: [UInt8] = []

    /// Those of an authority, without names.
    init(_ source: Certificate.Fields) {
        fields.organization = add(Array(source.organization.utf8))
        fields.common_name = add(Array(source.commonName.utf8))
        fields.serial = add(source.serial)
        fields.not_before = Int64(source.notBefore.timeIntervalSince1970.rounded(.down))
        fields.not_after = Int64(source.notAfter.timeIntervalSince1970.rounded(.down))
        fields.is_authority = 1
    }

    mutating func add(_ name: Certificate.AlternativeName) throws(CryptoError) {
        switch name {
        case .dns(let text): try add(APUS_NAME_DNS, text)
        case .uri(let text): try add(APUS_NAME_URI, text)
        case .address(let address): add(APUS_NAME_ADDRESS, address)
        }
    }

    private mutating func add(_ kind: apus_name_kind, _ text: String) throws(CryptoError) {
        let content = Array(text.utf8)
        guard content.allSatisfy({ $0 < 0x80 }) else { throw .malformed("the name \(text) is not ASCII") }
        add(kind, content)
    }

    private mutating func add(_ kind: apus_name_kind, _ content: [UInt8]) {
        names.append(apus_name(kind: kind, content: add(content)))
        fields.name_count = names.count
    }

    private mutating func add(_ content: [UInt8]) -> apus_range {
        defer { bytes += content }
        return apus_range(offset: bytes.count, count: content.count)
    }
}
