import ApusTraversal
import CApusNet
import Glibc

/// Busy channels have a second socket at the relayed address, connected to their peer. A datagram through it needs no
/// route look-up in the kernel. Data of other peers still arrives at the allocation's own socket.
extension PacketPlane {
    /// The number of datagrams of a channel to its peer after which it gets a socket of its own.
    static var hotPacketCount: UInt32 { 1_024 }

    /// The channel has reached that number.
    @inline(never)
    mutating func heatUp(_ slot: UInt32, _ channel: UnsafeMutablePointer<ChannelRow>) {
        // If it fails, or there is no room, it is tried again after as many more.
        channel.pointee.heat = 0
        guard hotFlows.hasRoom, let socket = connectedSocket(slot, to: channel.pointee) else { return }
        guard let index = hotFlows.insert(socket: socket, allocation: slot) else {
            apus_close(socket)
            return
        }
        reportErrors(of: socket)
        reportMarks(of: socket)
        _ = apus_poll_add(
            poll, socket, Self.readable, Self.token(.hotFlow, hotFlows.rows[index].generation, index))
        channel.pointee.hot = Int32(index)
        channel.pointee.socket = socket
    }

    /// The least time between changes of a socket's marks. Datagrams with other marks carry them themselves.
    private static var markInterval: UInt64 { 1_000_000_000 }

    /// True if a channel's socket applies the marks of the current datagrams. A datagram with marks of its own needs a
    /// route look-up in the kernel, which a connected socket is meant to save.
    @inline(__always)
    mutating func socketHasMarks(_ index: Int) -> Bool {
        hotFlows.rows[index].marks == output.marks || setSocketMarks(index)
    }

    @inline(never)
    private mutating func setSocketMarks(_ index: Int) -> Bool {
        let row = hotFlows.rows + index
        guard output.marks != SendBatch.expired, now &- row.pointee.markedAt >= Self.markInterval else { return false }
        // Waiting datagrams have the previous marks.
        flushKeepingInput()
        apus_datagram_mark(row.pointee.socket, output.marks)
        row.pointee.marks = output.marks
        row.pointee.markedAt = now
        return true
    }

    private func connectedSocket(_ slot: UInt32, to channel: ChannelRow) -> Int32? {
        let own = allocations.rows[Int(slot)].socket(to: channel.peer.family)
        guard let local = RawAddress.local(of: own) else { return nil }
        // The address is shared only for this moment. Before and after it, other processes find it in use.
        apus_datagram_share(own, 1)
        let socket = RelaySocket.openDatagram(
            local, sharesPort: true, joins: canJoin, bufferBytes: configuration.relayBufferBytes)
        apus_datagram_share(own, 0)
        guard socket >= 0 else { return nil }
        let peer = RawAddress(channel.peer)
        guard peer.withSocketAddress({ apus_datagram_connect(socket, $0, peer.length) }) == 0 else {
            apus_close(socket)
            return nil
        }
        return socket
    }

    /// The channel ended. Data that waits in its socket is lost.
    mutating func coolDown(_ channel: UnsafeMutablePointer<ChannelRow>) {
        guard channel.pointee.hot >= 0 else { return }
        let socket = hotFlows.release(Int(channel.pointee.hot))
        channel.pointee.hot = -1
        _ = apus_poll_remove(poll, socket)
        apus_close(socket)
    }
}
