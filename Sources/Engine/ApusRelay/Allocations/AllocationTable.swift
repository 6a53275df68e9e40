import ApusCore
package import ApusTraversal
import CApusNet

/// A bound channel of an allocation (RFC 8656 §12).
package struct ChannelRow {
    /// 0x4000...0x7FFF; 0 for an empty place.
    package var number: UInt16 = 0
    package var peer = TransportAddress(v4: 0, port: 0)
    /// The allocation's socket of the peer's family, or one that is connected to the peer.
    package var socket: Int32 = -1
    /// The index of the connected socket, or -1.
    package var hot: Int32 = -1
    /// Datagrams to the peer, until there is a connected socket.
    package var heat: UInt32 = 0
    /// The address in the form that messages to the peer refer to.
    package var address = RawAddress()
    /// The run to the peer in this batch.
    package var mark = SendBatch.Mark()
    /// True if the peer's host is the allocation's own, so it may be another allocation of this plane.
    package var isOwnHost = false
}

/// What the packet path needs of one allocation, in one place.
package struct AllocationRow {
    package var id: UInt32 = 0
    package var isLive = false
    /// The number of uses of this place. It identifies a late readiness event of an earlier socket.
    package var generation: UInt32 = 0
    package var socket: Int32 = -1
    /// The IPv6 socket of an allocation with both families, or -1.
    package var second: Int32 = -1
    package var flow = RelayFlow(
        plane: 0, transport: .udp, local: TransportAddress(v4: 0, port: 0), remote: TransportAddress(v4: 0, port: 0))
    /// The datagram client's listener, or -1.
    package var listener: Int32 = -1
    /// The listener's socket, through which the client is answered.
    package var clientSocket: Int32 = -1
    /// The stream client's index, or -1.
    package var stream: Int32 = -1
    /// The index of a DTLS client's session, or -1.
    package var session: Int32 = -1
    package var client = RawAddress()
    /// The run to the client in this batch.
    package var mark = SendBatch.Mark()
    /// The index of its user's bucket, or -1 if there is no limit.
    package var bucket: Int32 = -1
    /// Its share of control's queue.
    var controlShare = TokenBucket()
    /// The read depth of its sockets.
    var reads = ReadDepth()
    package var traffic = RelayTraffic()
    package var reported = RelayTraffic()
    /// The relayed address as peers see it; nil for a TCP allocation, and without a second family.
    package fileprivate(set) var relayed: TransportAddress?
    package fileprivate(set) var secondRelayed: TransportAddress?

    fileprivate(set) var channels: UnsafeMutablePointer<ChannelRow>?
    fileprivate var channelMask = 0
    package fileprivate(set) var channelCount = 0
    fileprivate var permissions: UnsafeMutablePointer<TransportAddress>?
    package fileprivate(set) var permissionCount = 0
    fileprivate var permissionCapacity = 0

    /// The socket to peers of a family.
    @inline(__always)
    func socket(to family: TransportAddress.Family) -> Int32 { family == .v6 && second >= 0 ? second : socket }

    /// The relayed address as peers of a family see it.
    @inline(__always)
    func relayed(to family: TransportAddress.Family) -> TransportAddress? {
        family == .v6 && second >= 0 ? secondRelayed : relayed
    }

    /// The channel of a number.
    @inline(__always)
    func channel(_ number: UInt16) -> UnsafeMutablePointer<ChannelRow>? {
        guard let channels else { return nil }
        var index = Int(number) & channelMask
        while channels[index].number != number {
            if channels[index].number == 0 { return nil }
            index = (index &+ 1) & channelMask
        }
        return channels + index
    }
}

/// The allocations of one plane and the tables that find them.
///
/// Rows are in one piece of memory that the kernel allocates page by page, so an unused row costs nothing. Channels and
/// permissions of a row are small arrays that grow on demand.
///
/// Concurrency model: confined to the plane's thread.
package struct AllocationTable: ~Copyable {
    package let rows: UnsafeMutablePointer<AllocationRow>
    private let rowsMax: Int
    private let permissionsMax: Int
    private let channelsMax: Int
    private var used = 0
    private var free: [UInt32] = []
    private var byID: FlatTable
    /// Datagram clients: from listener and address to row.
    private var byClient: FlatTable
    /// Peers with a channel: from row and address to channel number.
    private var channelPeers: FlatTable
    /// Permitted peers: from row and address without port, to the first and last port that may be sent to.
    private var permitted: FlatTable
    /// From relayed addresses to rows.
    private var byRelayed: FlatTable
    package private(set) var count = 0

    package init(configuration: PlaneConfiguration, seed: UInt64) {
        rowsMax = configuration.allocationsMax
        permissionsMax = configuration.permissionsMax
        channelsMax = min(configuration.channelsMax, 0x1000)
        rows = .allocate(capacity: rowsMax)
        byID = FlatTable(countMax: rowsMax, seed: seed)
        byClient = FlatTable(countMax: rowsMax, seed: seed &+ 1)
        channelPeers = FlatTable(countMax: rowsMax * 16, seed: seed &+ 2)
        permitted = FlatTable(countMax: rowsMax * 16, seed: seed &+ 3)
        byRelayed = FlatTable(countMax: rowsMax * 2, seed: seed &+ 8)
    }

    deinit {
        for slot in 0..<used {
            rows[slot].channels?.deallocate()
            rows[slot].permissions?.deallocate()
        }
        rows.deallocate()
    }

    /// The rows ever used, as a range to iterate over.
    package var slots: Range<Int> { 0..<used }

    /// The row of a datagram client, or ``FlatTable/none``.
    @inline(__always)
    package func slot(client key: FlatTable.Key) -> UInt32 { byClient.value(for: key) }

    /// The row of an allocation, or ``FlatTable/none``.
    package func slot(id: UInt32) -> UInt32 { byID.value(for: FlatTable.Key(number: id)) }

    /// The row with this peer as its relayed address, or ``FlatTable/none``.
    @inline(__always)
    package func slot(relayed address: TransportAddress) -> UInt32 {
        byRelayed.value(for: FlatTable.Key(address, scope: 0))
    }

    /// The channel that a peer of a row is bound to, or ``FlatTable/none``. The key's scope is the row.
    @inline(__always)
    package func channelNumber(peer key: FlatTable.Key) -> UInt32 { channelPeers.value(for: key) }

    /// True if a peer of a row may send.
    @inline(__always)
    package func isPermitted(peer key: FlatTable.Key) -> Bool { permitted.value(for: key.host) != FlatTable.none }

    /// True if a peer of a row may be sent to at a port.
    package func isPermitted(peer key: FlatTable.Key, port: UInt16) -> Bool {
        let ports = permitted.value(for: key.host)
        return ports != FlatTable.none && UInt32(port) >= ports >> 16 && UInt32(port) <= ports & 0xFFFF
    }

    /// True if control checks each port of a peer of a row, because the operator's lists name ports of it.
    package func isJudged(peer key: FlatTable.Key) -> Bool { permitted.value(for: key.host) == 0 }

    /// Takes a row for an allocation. The caller sets its client.
    ///
    /// - Returns: ``FlatTable/none`` if the table is full or the number is in use.
    package mutating func insert(id: UInt32, socket: Int32, second: Int32 = -1) -> UInt32 {
        guard slot(id: id) == FlatTable.none, count < rowsMax else { return FlatTable.none }
        let slot: UInt32
        if let old = free.popLast() {
            slot = old
        } else {
            slot = UInt32(used)
            (rows + used).initialize(to: AllocationRow())
            used += 1
        }
        guard byID.set(slot, for: FlatTable.Key(number: id)) else { return FlatTable.none }
        let generation = rows[Int(slot)].generation &+ 1
        rows[Int(slot)] = AllocationRow()
        rows[Int(slot)].id = id
        rows[Int(slot)].isLive = true
        rows[Int(slot)].generation = generation
        rows[Int(slot)].socket = socket
        rows[Int(slot)].second = second
        count += 1
        return slot
    }

    /// Sets a row's relayed addresses as peers see them, so that other rows find it.
    package mutating func setRelayed(_ slot: UInt32, _ address: TransportAddress?, second: TransportAddress?) {
        rows[Int(slot)].relayed = address
        rows[Int(slot)].secondRelayed = second
        for address in [address, second] {
            // Without room in the table, packets to this address pass through the kernel.
            if let address { _ = byRelayed.set(slot, for: FlatTable.Key(address, scope: 0)) }
        }
    }

    /// Removes the socket of one family from a row with both, IPv4 first. Its channels must be unbound.
    ///
    /// - Returns: the socket, which the caller closes; -1 if the row has only one family.
    mutating func removeFamily(_ slot: UInt32, _ family: TransportAddress.Family) -> Int32 {
        let row = rows + Int(slot)
        guard row.pointee.second >= 0 else { return -1 }
        let closed = family == .v6 ? row.pointee.second : row.pointee.socket
        let address = family == .v6 ? row.pointee.secondRelayed : row.pointee.relayed
        if let address { byRelayed.remove(FlatTable.Key(address, scope: 0)) }
        if family == .v4 {
            row.pointee.socket = row.pointee.second
            row.pointee.relayed = row.pointee.secondRelayed
        }
        row.pointee.second = -1
        row.pointee.secondRelayed = nil
        return closed
    }

    /// Sets a row's datagram client. Returns false if the client has another allocation.
    package mutating func setClient(_ slot: UInt32, listener: Int32, socket: Int32, flow: RelayFlow) -> Bool {
        let key = FlatTable.Key(flow.remote, scope: UInt32(listener))
        guard byClient.value(for: key) == FlatTable.none, byClient.set(slot, for: key) else { return false }
        clearClient(slot)
        let row = rows + Int(slot)
        row.pointee.flow = flow
        row.pointee.listener = listener
        row.pointee.clientSocket = socket
        row.pointee.client = RawAddress(flow.remote)
        return true
    }

    /// Sets a row's stream client.
    package mutating func setStream(_ slot: UInt32, stream: Int32, flow: RelayFlow) {
        clearClient(slot)
        rows[Int(slot)].flow = flow
        rows[Int(slot)].stream = stream
    }

    /// Sets a row's DTLS client.
    package mutating func setSession(_ slot: UInt32, session: Int32, flow: RelayFlow) {
        clearClient(slot)
        rows[Int(slot)].flow = flow
        rows[Int(slot)].session = session
    }

    private mutating func clearClient(_ slot: UInt32) {
        let row = rows + Int(slot)
        if row.pointee.listener >= 0 {
            byClient.remove(FlatTable.Key(row.pointee.flow.remote, scope: UInt32(row.pointee.listener)))
        }
        row.pointee.listener = -1
        row.pointee.stream = -1
        row.pointee.session = -1
    }

    /// Frees a row. The caller closes its socket.
    package mutating func remove(_ slot: UInt32) {
        let row = rows + Int(slot)
        clearClient(slot)
        byID.remove(FlatTable.Key(number: row.pointee.id))
        for address in [row.pointee.relayed, row.pointee.secondRelayed] {
            if let address { byRelayed.remove(FlatTable.Key(address, scope: 0)) }
        }
        if let channels = row.pointee.channels {
            for index in 0...row.pointee.channelMask where channels[index].number != 0 {
                channelPeers.remove(FlatTable.Key(channels[index].peer, scope: slot))
            }
            channels.deallocate()
        }
        if let permissions = row.pointee.permissions {
            for index in 0..<row.pointee.permissionCount {
                permitted.remove(FlatTable.Key(permissions[index], scope: slot))
            }
            permissions.deallocate()
        }
        row.pointee.channels = nil
        row.pointee.permissions = nil
        row.pointee.channelCount = 0
        row.pointee.permissionCount = 0
        row.pointee.isLive = false
        free.append(slot)
        count -= 1
    }

    /// Permits a peer's address. Returns false at the allocation's limit.
    package mutating func permit(
        _ slot: UInt32, _ peer: TransportAddress, ports: ClosedRange<UInt16> = 1...65_535
    ) -> Bool {
        let row = rows + Int(slot)
        let host = peer.host
        let key = FlatTable.Key(host, scope: slot)
        // A lower bound of 65,535 would look like an empty place. No relay has that port as its only one.
        let value = UInt32(min(ports.lowerBound, 65_534)) << 16 | UInt32(ports.upperBound)
        if permitted.value(for: key) != FlatTable.none { return permitted.set(value, for: key) }
        guard row.pointee.permissionCount < permissionsMax, permitted.set(value, for: key) else { return false }
        if row.pointee.permissionCount == row.pointee.permissionCapacity {
            let capacity = max(4, row.pointee.permissionCapacity * 2)
            let grown = UnsafeMutablePointer<TransportAddress>.allocate(capacity: capacity)
            if let old = row.pointee.permissions {
                grown.initialize(from: old, count: row.pointee.permissionCount)
                old.deallocate()
            }
            row.pointee.permissions = grown
            row.pointee.permissionCapacity = capacity
        }
        if let permissions = row.pointee.permissions {
            (permissions + row.pointee.permissionCount).initialize(to: host)
            row.pointee.permissionCount += 1
        }
        return true
    }

    /// Removes a permission.
    package mutating func revoke(_ slot: UInt32, _ peer: TransportAddress) {
        let row = rows + Int(slot)
        let host = peer.host
        guard permitted.remove(FlatTable.Key(host, scope: slot)) != FlatTable.none,
            let permissions = row.pointee.permissions
        else { return }
        for index in 0..<row.pointee.permissionCount where permissions[index] == host {
            permissions[index] = permissions[row.pointee.permissionCount - 1]
            row.pointee.permissionCount -= 1
            return
        }
    }

    /// Binds a channel. Returns false if the number or the peer has another binding, or the limit is reached.
    package mutating func bind(_ slot: UInt32, number: UInt16, peer: TransportAddress) -> Bool {
        let row = rows + Int(slot)
        let key = FlatTable.Key(peer, scope: slot)
        guard (0x4000...0x7FFF).contains(number) else { return false }
        if let channel = row.pointee.channel(number) { return channel.pointee.peer == peer }
        guard channelPeers.value(for: key) == FlatTable.none, row.pointee.channelCount < channelsMax,
            channelPeers.set(UInt32(number), for: key)
        else { return false }
        if row.pointee.channels == nil || (row.pointee.channelCount + 1) * 2 > row.pointee.channelMask + 1 {
            rehash(row, capacity: row.pointee.channels == nil ? 2 : (row.pointee.channelMask + 1) * 2)
        }
        var channel = ChannelRow()
        channel.number = number
        channel.peer = peer
        channel.socket = row.pointee.socket(to: peer.family)
        channel.address = RawAddress(peer)
        channel.isOwnHost = row.pointee.relayed(to: peer.family)?.host == peer.host
        place(channel, in: row)
        row.pointee.channelCount += 1
        return true
    }

    /// Calls the body with each channel of a row.
    func forEachChannel(_ slot: UInt32, _ body: (UnsafeMutablePointer<ChannelRow>) -> Void) {
        let row = rows + Int(slot)
        guard let channels = row.pointee.channels else { return }
        for index in 0...row.pointee.channelMask where channels[index].number != 0 { body(channels + index) }
    }

    /// Removes the binding of a channel.
    package mutating func unbind(_ slot: UInt32, number: UInt16) {
        let row = rows + Int(slot)
        guard let channel = row.pointee.channel(number) else { return }
        channelPeers.remove(FlatTable.Key(channel.pointee.peer, scope: slot))
        channel.pointee.number = 0
        row.pointee.channelCount -= 1
        // The entries behind the hole may have been reached through it.
        rehash(row, capacity: row.pointee.channelMask + 1)
    }

    private func rehash(_ row: UnsafeMutablePointer<AllocationRow>, capacity: Int) {
        let old = row.pointee.channels
        let oldMask = row.pointee.channelMask
        let grown = UnsafeMutablePointer<ChannelRow>.allocate(capacity: capacity)
        grown.initialize(repeating: ChannelRow(), count: capacity)
        row.pointee.channels = grown
        row.pointee.channelMask = capacity - 1
        guard let old else { return }
        for index in 0...oldMask where old[index].number != 0 { place(old[index], in: row) }
        old.deallocate()
    }

    private func place(_ channel: ChannelRow, in row: UnsafeMutablePointer<AllocationRow>) {
        guard let channels = row.pointee.channels else { return }
        var index = Int(channel.number) & row.pointee.channelMask
        while channels[index].number != 0 { index = (index + 1) & row.pointee.channelMask }
        channels[index] = channel
    }
}
