import ApusCluster
import ApusCore
import ApusLocal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Faults of the clients' network, and many clients at once.
extension FaultRounds {
    // MARK: Slow networks

    var wayRows: [(FaultRow, Round)] {
        options.roundTrips.map { milliseconds in
            let row = FaultRow(
                key: "ways-\(milliseconds)",
                says: "round trip \(milliseconds) ms, \(Int(options.refusedShare * 100)) % refused",
                // A sign-in consists of TCP, TLS, the hello and play: at most eight round trips with one refusal.
                bound: FaultBound(firstMax: 4_000 + 8 * Double(milliseconds)))
            return (row, { number, result in try await way(milliseconds, number, into: &result) })
        }
    }

    private func way(_ milliseconds: Int, _ number: Int, into result: inout FaultResult) async throws {
        let nodes = 3
        let proxied = (0..<nodes).map {
            HostPort(host: "127.0.0.1", port: options.basePort + 500 + $0)
        }
        var stageOptions = FailoverStage.Options()
        stageOptions.advertisedClients = proxied
        try await withStage(stageOptions) { stage in
            let proxy = DelayProxy(
                .init(roundTrip: .milliseconds(milliseconds), refusedShare: options.refusedShare),
                seed: UInt64(milliseconds * 1_000 + number))
            for (index, address) in proxied.enumerated() {
                let target = HostPort(
                    host: "127.0.0.1", port: options.basePort + index * NodeConfigurationFile.portsPerNode + 1)
                try await proxy.listen(at: address, target: target)
            }
            do {
                let cast = try await crowd(
                    cameras: max(1, options.wayViewers / 4), viewers: options.wayViewers, frames: BenchFrames(),
                    on: stage)
                try await cast.waitUntilSettled(frames: 75, within: .seconds(15) + .milliseconds(12 * milliseconds))
                let end = MonotonicTime.now()
                result.gaps(of: cast, from: end + .seconds(-2), to: end)
                for publisher in cast.publishers { publisher.pause() }
                try await cast.waitUntilCaughtUp()
                result.count(cast, slack: .milliseconds(100 + milliseconds / 2))
                cast.leave()
            } catch {
                await proxy.stop()
                throw error
            }
            await proxy.stop()
        }
    }

    /// Known cameras, and viewers that all start at the same moment, spread over the nodes.
    private func crowd(
        cameras: Int, viewers: Int, frames: BenchFrames, on stage: FailoverStage
    ) async throws -> FailoverCast {
        let names = Self.names(stage)
        let devices = try await stage.devices(cameras, prefix: "c\(UInt16.random(in: 0...(.max)))") { _, _ in true }
        try await stage.bind(devices, at: HostPort(host: "127.0.0.1", port: options.basePort + 1))
        let cast = FailoverCast()
        for (index, device) in devices.enumerated() {
            cast.publishers.append(
                try await stage.publisher(device, endpoint: names[index % names.count], frames: frames))
        }
        var waiting: [(Int, BenchViewer)] = []
        for number in 0..<viewers {
            let endpoint = names[number % names.count]
            waiting.append(
                (
                    number % cameras,
                    try await stage.viewer(devices[number % cameras], number: number, endpoint: endpoint)
                ))
        }
        for publisher in cast.publishers { publisher.start() }
        for (channel, viewer) in waiting { cast.add(viewer, of: channel) }
        return cast
    }

    // MARK: Many at once

    var crowdRow: (FaultRow, Round) {
        let row = FaultRow(
            key: "crowd", says: "\(options.crowd) viewers start at once", bound: FaultBound(firstMax: 10_000))
        return (
            row,
            { _, result in
                try await withStage { stage in
                    let cast = try await crowd(cameras: 5, viewers: options.crowd, frames: .light, on: stage)
                    defer { cast.leave() }
                    try await cast.waitUntilSettled(frames: 75, within: .seconds(40))
                    for publisher in cast.publishers { publisher.pause() }
                    try await cast.waitUntilCaughtUp()
                    // The machine is busy with this many viewers: a frame may arrive at the primary this late.
                    result.count(cast, slack: .seconds(1))
                }
            }
        )
    }

    // MARK: A node with a thousand viewers

    var thousandRow: (FaultRow, Round) {
        let row = FaultRow(
            key: "thousand", says: "kill -9 the node of \(options.thousand) viewers", bound: FaultBound(gapMax: 1_000))
        return (row, { number, result in try await thousand(number, into: &result) })
    }

    private func thousand(_ number: Int, into result: inout FaultResult) async throws {
        try await withStage { stage in
            let names = Self.names(stage)
            let victim = names[number % names.count]
            let channelCount = 10
            let devices = try await stage.devices(channelCount, prefix: "t\(UInt16.random(in: 0...(.max)))") {
                owner, _ in
                owner == victim
            }
            try await stage.bind(devices, at: HostPort(host: "127.0.0.1", port: options.basePort + 1))
            let cast = FailoverCast()
            defer { cast.leave() }
            for device in devices {
                cast.publishers.append(try await stage.publisher(device, endpoint: victim, frames: .light))
            }
            for publisher in cast.publishers { publisher.start() }
            for viewer in 0..<options.thousand {
                // About a hundred per second, so that the node is not busy with sign-ins when it is killed.
                try await Task.sleep(for: .milliseconds(8))
                let channel = viewer % channelCount
                cast.add(try await stage.viewer(devices[channel], number: viewer, endpoint: victim), of: channel)
            }
            try await cast.waitUntilSettled(frames: 50, within: .seconds(30))
            let killedAt = MonotonicTime.now()
            try stage.signal(victim, SIGKILL)
            try await cast.waitUntilLive(within: .seconds(20))
            result.gaps(of: cast, from: killedAt, to: .now())
            try await finish(cast, into: &result)
        }
    }

    // MARK: Joins

    var rejoinRows: [(FaultRow, Round)] {
        [false, true].map { restarts in
            let row = FaultRow(
                key: restarts ? "rejoin-restarted" : "rejoin",
                says: restarts
                    ? "next viewer of an edge, camera restarted" : "next viewer of an edge, idle for 5 s",
                bound: FaultBound(firstMax: 1_000))
            return (row, { number, result in try await rejoin(number, restarts: restarts, into: &result) })
        }
    }

    private func rejoin(_ number: Int, restarts: Bool, into result: inout FaultResult) async throws {
        try await withStage { stage in
            let names = Self.names(stage)
            let (owner, standby, edge) = (names[number % 3], names[(number + 1) % 3], names[(number + 2) % 3])
            let devices = try await stage.devices(1, prefix: "r\(UInt16.random(in: 0...(.max)))") {
                $0 == owner && $1 == standby
            }
            guard let device = devices.first else { throw ApusError(.internalFailure, "no device fits") }
            let cast = FailoverCast()
            defer { cast.leave() }
            cast.publishers.append(try await stage.publisher(device, endpoint: owner))
            cast.publishers[0].start()
            try await Task.sleep(for: .milliseconds(300))
            let former = try await stage.viewer(device, number: 0, endpoint: edge)
            former.start()
            let deadline = MonotonicTime.now() + .seconds(10)
            while former.records.count < 50, MonotonicTime.now() < deadline {
                try await Task.sleep(for: .milliseconds(20))
            }
            former.stop()
            if restarts {
                cast.publishers[0].stop()
                try await Task.sleep(for: .milliseconds(1_500))
                cast.publishers[0] = try await stage.publisher(device, endpoint: owner)
                cast.publishers[0].start()
            }
            // More than two key frames after those that the edge had.
            try await Task.sleep(for: .seconds(5))
            cast.add(try await stage.viewer(device, number: 1, endpoint: edge), of: 0)
            try await cast.waitUntilSettled(frames: 75, within: .seconds(10))
            if restarts, let old = former.records.last?.epoch {
                result.staleFrames(cast.viewers[0].viewer.records.count { $0.epoch == old })
            }
            try await finish(cast, into: &result)
        }
    }

    var twinRow: (FaultRow, Round) {
        let row = FaultRow(
            key: "twins", says: "two cameras with one id start within 400 ms", bound: FaultBound(firstMax: 5_000))
        return (row, { number, result in try await twins(number, into: &result) })
    }

    /// Exactly one camera must end, and the other one's pictures must be seen.
    private func twins(_ number: Int, into result: inout FaultResult) async throws {
        try await withStage { stage in
            let names = Self.names(stage)
            let device = DeviceID(unchecked: "twin-\(number)")
            let cast = FailoverCast()
            defer { cast.leave() }
            for index in 0..<2 {
                cast.publishers.append(
                    try await stage.publisher(device, endpoint: names[(number + index) % names.count]))
            }
            cast.publishers[0].start()
            // Within one second, and with another order of their messages in each round.
            try await Task.sleep(for: .milliseconds(number % 5 * 100))
            cast.publishers[1].start()
            try await Task.sleep(for: .seconds(4))
            let late = try await stage.viewer(device, number: 0, endpoint: names[number % names.count])
            late.start()
            try await Task.sleep(for: .seconds(3))
            let ends = cast.publishers.compactMap(\.endError)
            result.addRound(clients: 3)
            for error in ends { result.end(error) }
            if let code = ends.first?.code.number { result.excuse(1, of: code) }
            if ends.isEmpty { result.failed("neither of two cameras with one id ended") }
            if let error = late.endError { result.end(error) }
            if let first = late.records.first { result.first(first.at - late.startedAt) } else { result.noPicture() }
            late.stop()
        }
    }
}
