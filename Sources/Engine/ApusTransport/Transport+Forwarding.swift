package import ApusCore
import ApusWire
import CoreMetrics
import Logging
import NIOCore
import NIOPosix
import Synchronization

/// What the address of a node says to a new connection.
package enum NodeReach: Sendable, Hashable {
    case reached
    /// Another incarnation of the node answers.
    case another
    /// The machine refuses connections: the node's process has ended.
    case refused
    case silent
    /// The node answers, and does not accept this node's certificate.
    case unwelcome
}

/// Connections through a third node, where the path between two nodes is cut (D4).
extension Transport {
    /// Dials a peer through another one, or directly again with nil. The present connections to the peer are closed,
    /// since a path that is cut carries nothing. Calls in flight on them fail with 10008. Nothing happens if the peer
    /// or the helper is not a peer, or if the path is in use already.
    package func setPath(to peer: NodeName, via helper: NodeName?) {
        let (dialers, address) = state.withLock { state -> ([LinkDialer], HostPort?) in
            guard let links = state.links[peer], links.helper != helper else { return ([], nil) }
            let address = helper.flatMap { state.links[$0]?.peer.address }
            guard (address == nil) == (helper == nil) else { return ([], nil) }
            state.links[peer]?.helper = helper
            return (links.dialers, address)
        }
        for dialer in dialers { dialer.setWay(via: address) }
    }

    /// The destination of an accepted connection that is to be forwarded; nil if it ends here.
    ///
    /// - Throws: 10011 for an invalid tag, 10010 if the node is not a peer that this node dials directly.
    func forwardAddress(of destination: ForwardDestination) throws(ApusError) -> HostPort {
        guard let key = secrets.withLock({ $0?.forwardingKey }), key.isValid(destination) else {
            throw ApusError(.wrongCluster, "the tag of a connection to forward is invalid")
        }
        guard let links = state.withLock({ $0.links[destination.node] }), links.helper == nil else {
            throw ApusError(.noRoute)
        }
        return links.peer.address
    }

    /// Connects to the address, and copies bytes between the two connections until one of them ends. Call on the
    /// channel's loop; its automatic reading is off. Beyond ``TransportConfiguration/forwardedMax`` the channel is
    /// closed.
    ///
    /// - Parameter bytes: what was read from the channel.
    func forward(_ channel: any Channel, to address: HostPort, after bytes: ByteBuffer) {
        let isAdmitted = state.withLock { state in
            guard state.forwardedCount < configuration.forwardedMax else { return false }
            state.forwardedCount += 1
            metrics.forwarded.record(state.forwardedCount)
            return true
        }
        guard isAdmitted else {
            reject(.crowded, ApusError(.overloaded), [LogKey.address: "\(address)"])
            return channel.close(promise: nil)
        }
        channel.closeFuture.whenComplete { _ in
            self.state.withLock { state in
                state.forwardedCount -= 1
                self.metrics.forwarded.record(state.forwardedCount)
            }
        }
        let dial = ClientBootstrap(group: channel.eventLoop)
            .connectTimeout(TimeAmount(configuration.connectTimeout))
            .channelOption(.tcpOption(.tcp_nodelay), value: 1)
            .channelOption(.autoRead, value: false)
        dial.connect(host: address.host, port: address.port).whenComplete { result in
            guard case .success(let onward) = result else { return channel.close(promise: nil) }
            closeOnExec(onward)
            let (near, far) = ForwardHandler.pair(counting: self.metrics.forwardedBytes)
            do {
                try onward.pipeline.syncOperations.addHandler(far)
                try channel.pipeline.syncOperations.addHandler(near)
                onward.writeAndFlush(bytes, promise: nil)
                try channel.syncOptions?.setOption(.autoRead, value: true)
                try onward.syncOptions?.setOption(.autoRead, value: true)
            } catch {
                channel.close(promise: nil)
                onward.close(promise: nil)
            }
        }
    }
}
