import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import ApusTracing
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization
import Testing
import Tracing

@Suite("Requests of one connection, carried out (D17)", .timeLimit(.minutes(1)))
struct ClientCallsRunTests {
    /// A connection's requests on a loop of their own, with the tasks that a listener would own.
    private final class Line: Sendable {
        let loop = MultiThreadedEventLoopGroup.singleton.next()
        let services: ClientServices
        private let calls: NIOLoopBoundBox<ClientCalls?>
        private let work: AsyncStream<@Sendable () async -> Void>
        let answers: AsyncStream<(UInt32, Result<ByteBuffer, ApusError>)>

        init(_ api: ClientAPI, change: (inout ClientAPIConfiguration) -> Void = { _ in }) async throws {
            var bounds = ClientAPIConfiguration()
            change(&bounds)
            let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
            services = ClientServices(api, topics: nil, configuration: bounds, audit: AuditLog(log))
            let (work, spawn) = AsyncStream<@Sendable () async -> Void>.makeStream()
            let (answers, answer) = AsyncStream<(UInt32, Result<ByteBuffer, ApusError>)>.makeStream()
            (self.work, self.answers) = (work, answers)
            calls = .makeEmptyBox(eventLoop: loop)
            let (box, services, loop) = (calls, services, loop)
            try await loop.submit {
                box.value = ClientCalls(
                    services, on: loop, spawn: { spawn.yield($0) }, answer: { answer.yield(($0, $1)) })
            }.get()
        }

        func run() async {
            await withDiscardingTaskGroup { group in
                for await piece in work { group.addTask { await piece() } }
            }
        }

        func send(_ id: UInt32, _ request: some ClientRequestMessage, within time: Duration? = nil) async throws {
            let operation = try services.api.operation(number: type(of: request).info.number)
            let payload = ByteBuffer(bytes: try request.serializedBytes() as [UInt8])
            let call = ClientCall(
                session: ClientCallsRunTests.session, deadline: services.deadline(asked: time))
            try await loop.submit { [calls] in calls.value?.received(id, operation, payload, .binary, call) }.get()
        }

        func cancel(_ id: UInt32) async throws {
            try await loop.submit { [calls] in calls.value?.cancelled(id) }.get()
        }
    }

    private static let session = Session(
        id: "-", role: .app, access: AccessID(unchecked: "ann"), account: AccountID(unchecked: "a"), device: nil,
        sinceMilliseconds: 0, token: TokenMark(tag: 0, issuedAt: 0, expires: .max))

    /// `devices.get` of `slow` takes until it is cancelled, all else answers at once.
    private static func api(cancelled: @escaping @Sendable () -> Void = {}) -> ClientAPI {
        var api = ClientAPI()
        api.on(ClientGetDeviceRequest.self, orderKey: { $0.device.hasPrefix("ordered") ? "ordered" : nil }) {
            request, _ throws(ApusError) in
            if request.device.hasSuffix("slow"), (try? await Task.sleep(for: .seconds(30))) == nil { cancelled() }
            return ClientDevice.with { $0.device = request.device }
        }
        return api
    }

    private static func request(_ device: String) -> ClientGetDeviceRequest { .with { $0.device = device } }

    private static func code(_ result: Result<ByteBuffer, ApusError>) -> ErrorCode? {
        if case .failure(let error) = result { error.code } else { nil }
    }

    @Test("A slow request holds up no other, and ends with 10005 and its task cancelled when its time is over")
    func deadline() async throws {
        let cancelled = Atomic(0)
        let line = try await Line(Self.api { cancelled.add(1, ordering: .relaxed) })
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { await line.run() }
            let began = ContinuousClock.now
            try await line.send(1, Self.request("slow"), within: .seconds(3))
            try await line.send(2, Self.request("quick"))
            var answers = line.answers.makeAsyncIterator()
            let first = try #require(await answers.next())
            #expect(first.0 == 2 && Self.code(first.1) == nil)
            let second = try #require(await answers.next())
            #expect(second.0 == 1 && Self.code(second.1) == .deadlineExceeded)
            #expect(ContinuousClock.now - began < .seconds(25))
            for _ in 0..<100 where cancelled.load(ordering: .relaxed) == 0 {
                try await Task.sleep(for: .milliseconds(20))
            }
            #expect(cancelled.load(ordering: .relaxed) == 1)
            group.cancelAll()
        }
    }

    @Test("A cancelled request is not answered, its task is cancelled, and what waited behind it goes on")
    func cancel() async throws {
        let cancelled = Atomic(0)
        let line = try await Line(Self.api { cancelled.add(1, ordering: .relaxed) })
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { await line.run() }
            try await line.send(1, Self.request("ordered-slow"))
            try await line.send(2, Self.request("ordered"))
            try await Task.sleep(for: .milliseconds(50))
            try await line.cancel(1)
            var answers = line.answers.makeAsyncIterator()
            let answer = try #require(await answers.next())
            #expect(answer.0 == 2 && Self.code(answer.1) == nil)
            #expect(cancelled.load(ordering: .relaxed) == 1)
            group.cancelAll()
        }
    }

    @Test("A client of another role is refused with 12004, and one that asks too often with 10007")
    func refused() async throws {
        var api = Self.api()
        api.on(ClientListNodesRequest.self) { _, _ throws(ApusError) in ClientListNodesResponse() }
        let line = try await Line(api) { $0.requestsPerSecondEach = 2 }
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { await line.run() }
            var answers = line.answers.makeAsyncIterator()
            try await line.send(1, ClientListNodesRequest())
            #expect(Self.code(try #require(await answers.next()).1) == .notAllowed)
            var codes: [ErrorCode?] = []
            for id in UInt32(2)..<12 {
                try await line.send(id, Self.request("quick"))
                codes.append(Self.code(try #require(await answers.next()).1))
            }
            #expect(codes.prefix(4).allSatisfy { $0 == nil } && codes.contains(.overloaded))
            group.cancelAll()
        }
    }

    @Test("A request of a recorded trace has a span with who asked and its error, and its handler runs inside")
    func traced() async throws {
        let ended = Mutex<[FinishedSpan]>([])
        var api = ClientAPI()
        api.on(ClientGetDeviceRequest.self) { request, _ throws(ApusError) in
            guard request.device != "none" else { throw ApusError(.targetUnknown) }
            return ClientDevice.with { $0.device = TraceContext.current?.spanID ?? "" }
        }
        let services = ClientServices(
            api, topics: nil, configuration: ClientAPIConfiguration(),
            audit: AuditLog(Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }),
            tracer: SpanTracer(sampleRatio: 0) { span in ended.withLock { $0.append(span) } })
        let operation = try api.operation(named: "devices.get")
        func ask(_ device: String, _ trace: TraceContext?) async throws -> Result<ByteBuffer, ApusError> {
            let payload = ByteBuffer(bytes: try Self.request(device).serializedBytes() as [UInt8])
            let work = try operation.read(payload, .binary)
            let deadline = services.deadline(asked: nil)
            return await services.carryOut(
                operation, work, ClientCall(session: Self.session, deadline: deadline, trace: trace))
        }
        let parent = try #require(TraceContext(traceHigh: 1, traceLow: 2, span: 3, isSampled: true))
        _ = try await ask("one", nil)
        let answer = try await ask("one", parent).get()
        let handler = try ClientDevice(serializedBytes: Array(answer.readableBytesView)).device
        _ = try await ask("none", parent)
        let spans = ended.withLock { $0 }
        try #require(spans.count == 2)
        #expect(spans.allSatisfy { $0.name == "devices.get" && $0.parent == 3 && $0.trace.traceLow == 2 })
        #expect(spans[0].trace.spanID == handler && !spans[0].isFailure)
        let facts: SpanAttributes = [
            "rpc.system": "apus", "apus.protocol": "rest", "apus.account": "a", "apus.role": "app",
        ]
        #expect(spans[0].attributes == facts)
        #expect(spans[1].isFailure && spans[1].attributes.get("apus.code") == .int(8002))
    }
}
