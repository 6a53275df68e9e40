import ApusCore
import ApusCrypto
import ApusSessions
import Foundation

private let clusterKey = [UInt8](repeating: 7, count: 32)
private let sealer = TicketSealer(clusterKey: clusterKey)

/// D6: what no node sealed is never opened, and what is inside a seal may be anything.
func fuzzTicket(_ input: [UInt8]) {
    precondition((try? sealer.open(input, wallSeconds: 0)) == nil, "a forged ticket is opened")
    // The same bytes behind a true seal, so that the reading of a ticket's content is reached.
    let key = HKDF.deriveKey(
        inputKeyMaterial: clusterKey, info: Data("apus session tickets".utf8), outputByteCount: 32)
    guard let sealed = try? AES.GCM.seal(input, using: key) else { return }
    guard let session = try? sealer.open(sealed, wallSeconds: 0) else { return }
    var forged = sealed
    forged[input.count % forged.count] ^= 1
    precondition((try? sealer.open(forged, wallSeconds: 0)) == nil, "a changed ticket is opened")
    guard let again = try? sealer.seal(session, expiresAt: 1), again.count <= TicketSealer.byteCountMax else { return }
    precondition((try? sealer.open(again, wallSeconds: 0)) == session, "a ticket is written otherwise")
}
