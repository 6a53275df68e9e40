package import ApusCore

/// What an address names, and for whom it was made (``SessionService/address(of:wallSeconds:)``).
package struct SealedAddress: Sendable, Hashable {
    /// Who asked for it. It has no id, and its device is the one that the address concerns.
    package var session: Session
    /// What it names, as its service encoded it.
    package var content: [UInt8]
    /// The expiry, in Unix seconds.
    package var expires: Int64

    package init(session: Session, content: [UInt8], expires: Int64) {
        (self.session, self.content, self.expires) = (session, content, expires)
    }
}

// Addresses of files, which a client passes to a player that has no token. They are sealed as tickets are, so every
// node can read them, and none keeps them. They end with the token of the client that asked for them.
extension TicketSealer {
    /// The longest content of an address, in bytes.
    package static let addressByteCountMax = 255

    /// Seals an address, as a text that can be a part of a URL.
    ///
    /// - Parameters:
    ///   - device: the device that it concerns.
    ///   - content: what it names, at most ``addressByteCountMax`` bytes.
    ///   - expiresAt: Unix seconds. It ends at the expiry of the session's token at the latest.
    /// - Throws: 10018 if it cannot be sealed.
    package func sealAddress(
        _ session: Session, device: DeviceID, content: [UInt8], expiresAt: Int64
    ) throws(ApusError) -> (text: String, expires: Int64) {
        guard content.count <= Self.addressByteCountMax else {
            throw ApusError(.internalFailure, "the content of an address is too long")
        }
        var named = session
        (named.id, named.device, named.allowedDevices, named.sinceMilliseconds) = ("", device, nil, 0)
        let expires = min(expiresAt, session.token.expires)
        let bytes = try seal(TicketContent(kind: .address, session: named, expires: expires, content: content))
        return (Base64URL.encode(bytes), expires)
    }

    /// - Throws: 12001 if this cluster did not make the address, 12002 if it has expired.
    package func openAddress(_ text: String, wallSeconds: Int64) throws(ApusError) -> SealedAddress {
        guard text.utf8.count <= Self.byteCountMax, let bytes = Base64URL.decode(Array(text.utf8)[...]) else {
            throw ApusError(.tokenInvalid, "the address was not made by this cluster")
        }
        let found = try read(bytes, as: .address, wallSeconds: wallSeconds)
        return SealedAddress(session: found.session, content: found.content, expires: found.expires)
    }
}

extension SessionService {
    /// As ``TicketSealer/sealAddress(_:device:content:expiresAt:)``, for a lifetime from now on.
    package func sealAddress(
        _ session: Session, device: DeviceID, content: [UInt8], lifetime: Duration
    ) throws(ApusError) -> (text: String, expires: Int64) {
        try sealer.sealAddress(
            session, device: device, content: content, expiresAt: wallSeconds() + lifetime.components.seconds)
    }

    /// What an address names.
    ///
    /// - Throws: 12001 if this cluster did not make it, or the token with which it was asked for is revoked; 12002 if
    ///   it has expired.
    package func openAddress(_ text: String) throws(ApusError) -> SealedAddress {
        let address = try sealer.openAddress(text, wallSeconds: wallSeconds())
        try checkAddress(address)
        return address
    }

    /// Whether the token of an address is still valid. Throws 12001 and 12002.
    package func checkAddress(_ address: SealedAddress) throws(ApusError) {
        guard address.expires > wallSeconds() else { throw ApusError(.tokenExpired, "the address has expired") }
        try checkSignIn(address.session)
    }
}
