package import ApusContract
package import ApusCore
import ApusCrypto
import Foundation

/// Decides whether a device may install what it is offered (IV-E1).
///
/// The cluster is not trusted with this: a version needs the signature of the device's maker, has to be of the device's
/// product, and newer than what the device runs. Pure.
package struct FirmwareCheck: Sendable {
    private let key: [UInt8]
    private let product: String
    /// The largest image that the device takes, in bytes.
    private let sizeMax: UInt64

    /// - Parameter key: the 32 bytes of an Ed25519 public key.
    /// - Throws: 21031 if it is none, or the product is no name.
    package init(key: [UInt8], product: String, sizeMax: UInt64) throws(ApusError) {
        guard key.count == 32, (try? Curve25519.Signing.PublicKey(rawRepresentation: key)) != nil else {
            throw ApusError(.badParameter, "the key of the firmware is not an Ed25519 public key of 32 bytes")
        }
        guard ProductID(rawValue: product) != nil else {
            throw ApusError(.badParameter, "the product must be 1 to 63 letters, digits, '-', '_' or '.'")
        }
        (self.key, self.product, self.sizeMax) = (key, product, sizeMax)
    }

    /// The manifest of an offer that the device may install over its version.
    ///
    /// - Throws: 21031 if the signature is not valid, or it is of another product, another version than is offered, no
    ///   newer version, or one that requires another version first; 10002 if the image is too large.
    package func manifest(
        of offer: ClientFirmwareOffer, current: FirmwareVersion
    ) throws(ApusError) -> FirmwareManifest {
        guard let key = try? Curve25519.Signing.PublicKey(rawRepresentation: key),
            key.isValidSignature(offer.signature, for: Data(offer.manifest.utf8))
        else { throw ApusError(.badParameter, "the signature of the firmware is not valid") }
        let manifest = try FirmwareManifest(text: offer.manifest)
        guard manifest.product == product else {
            throw ApusError(.badParameter, "the firmware is for another product")
        }
        guard manifest.version.description == offer.version else {
            throw ApusError(.badParameter, "the firmware is of another version than is offered")
        }
        guard manifest.version > current else {
            throw ApusError(.badParameter, "the firmware is not newer than version \(current)")
        }
        if let from = manifest.from, from > current {
            throw ApusError(.badParameter, "the firmware requires version \(from) first")
        }
        guard manifest.size <= sizeMax else {
            throw ApusError(.frameTooLarge, "the firmware has \(manifest.size) bytes, over \(sizeMax)")
        }
        return manifest
    }
}

/// When the progress of an update is reported: at each state, and while it loads, at most every 5 percent. Pure.
package struct FirmwareProgress: Sendable {
    package enum State: String, Sendable, Hashable { case downloading, verifying, installing, failed, done }

    /// The least step that is reported, in percent.
    package static let step = 5

    private let version: String
    private var last: (state: State, percent: Int)?

    package init(version: FirmwareVersion) { self.version = version.description }

    /// The state `ProReadonly._update` in JSON; nil if there is nothing to report.
    package mutating func report(_ state: State, percent: Int) -> String? {
        if let last, last.state == state, percent < last.percent + Self.step, percent != 100 || last.percent == 100 {
            return nil
        }
        last = (state, percent)
        return
            #"{"stVal":{"version":"\#(version)","state":"\#(state.rawValue)","percent":\#(percent)}}"#
    }
}
