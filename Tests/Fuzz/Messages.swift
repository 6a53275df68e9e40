import ApusContract
import ApusCore
import ApusWire
import NIOCore
import SwiftProtobuf

/// D3: a message of the media lane, of the control lane or of a client is refused, or its numbers are within bounds and
/// it means the same when written again.
///
/// The first byte of the input says which message it is.
func fuzzMessages(_ input: [UInt8]) {
    guard let kind = input.first else { return }
    let bytes = Array(input.dropFirst())
    readers[Int(kind) % readers.count](bytes)
}

private let readers: [@Sendable ([UInt8]) -> Void] = [
    { again(ChannelSubscribe.self, $0) }, { again(ChannelSubscribed.self, $0) },
    { again(ChannelUnsubscribe.self, $0) }, { again(ChannelIngest.self, $0) }, { again(ChannelIngesting.self, $0) },
    { again(ChannelEndIngest.self, $0) }, { again(ChannelAcknowledged.self, $0) },
    { again(ChannelResume.self, $0) }, { again(ChannelReplicate.self, $0) }, { again(ChannelReplicating.self, $0) },
    { again(ChannelReplicated.self, $0) }, { again(ChannelPublisherChanged.self, $0) },
    { again(ChannelCopyRefused.self, $0) }, { again(ChannelIngestEnded.self, $0) },
    { again(ClusterNodeHello.self, $0) }, { again(ClusterFailure.self, $0) }, { again(ClusterMapValue.self, $0) },
    { again(ClusterMapChanged.self, $0) }, { hello($0) },
    { again(ClientHello.self, $0) }, { again(ClientWelcome.self, $0) }, { again(ClientFailure.self, $0) },
    { again(ClientPublishRequest.self, $0) }, { again(ClientPublishResponse.self, $0) },
    { again(ClientPublishAck.self, $0) }, { again(ClientPublishResume.self, $0) },
    { again(ClientPlayRequest.self, $0) }, { again(ClientPlayResponse.self, $0) },
    { again(ClientStreamState.self, $0) }, { again(ClientPresence.self, $0) },
]

private func again<M: BoundedMessage>(_ type: M.Type, _ bytes: [UInt8]) {
    guard let message = try? M(bounded: bytes) else { return }
    guard let written: [UInt8] = try? message.serializedBytes() else { preconditionFailure("it cannot be written") }
    precondition((try? M(bounded: written)) != nil, "a message is refused when it is written again")
}

/// A link's first frame may be anything; the handshake ends, with a goodbye or a welcome.
private func hello(_ bytes: [UInt8]) {
    let local = NodeID(name: NodeName(unchecked: "a"), incarnation: 1)
    var machine = HandshakeStateMachine(role: .acceptor(), cluster: ClusterID(unchecked: "test"), local: local)
    _ = machine.secured(certificateName: NodeName(unchecked: "b"))
    let actions = machine.received(LinkFrame(kind: .hello, payload: ByteBuffer(bytes: bytes)))
    precondition(!actions.isEmpty, "a hello is not answered")
    if case .established(let peer)? = actions.last {
        precondition(peer.id.incarnation <= WireNumber.incarnationMax, "an incarnation is out of bounds")
    }
}
