// swift-tools-version: 6.2
import PackageDescription

// The manifest is the architecture: a target may import only what it lists here, and the build
// enforces it (`--explicit-target-dependency-import-check error`). Layers go from the top of this
// file to the bottom; a target depends only on targets above it. See docs/concepts.md.

let apusSettings: [SwiftSetting] = [
    .swiftLanguageMode(.v6),
    .treatAllWarnings(as: .error),
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("MemberImportVisibility"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
]

// Outside products, named once.
let log: Target.Dependency = .product(name: "Logging", package: "swift-log")
let coreMetrics: Target.Dependency = .product(name: "CoreMetrics", package: "swift-metrics")
let dequeModule: Target.Dependency = .product(name: "DequeModule", package: "swift-collections")
let orderedCollections: Target.Dependency = .product(name: "OrderedCollections", package: "swift-collections")
let nioCore: Target.Dependency = .product(name: "NIOCore", package: "swift-nio")
let nioPosix: Target.Dependency = .product(name: "NIOPosix", package: "swift-nio")
let nioEmbedded: Target.Dependency = .product(name: "NIOEmbedded", package: "swift-nio")
let nioWebSocket: Target.Dependency = .product(name: "NIOWebSocket", package: "swift-nio")
let nioHTTPTypes: Target.Dependency = .product(name: "NIOHTTPTypes", package: "swift-nio-extras")
let nioHTTPTypesHTTP1: Target.Dependency = .product(name: "NIOHTTPTypesHTTP1", package: "swift-nio-extras")
let nioHTTP1: Target.Dependency = .product(name: "NIOHTTP1", package: "swift-nio")
let nioFoundationCompat: Target.Dependency = .product(name: "NIOFoundationCompat", package: "swift-nio")
let nioTLS: Target.Dependency = .product(name: "NIOTLS", package: "swift-nio")
let nioSSL: Target.Dependency = .product(name: "NIOSSL", package: "swift-nio-ssl")
let protobuf: Target.Dependency = .product(name: "SwiftProtobuf", package: "swift-protobuf")
let tracing: Target.Dependency = .product(name: "Tracing", package: "swift-distributed-tracing")
let crypto: Target.Dependency = .product(name: "Crypto", package: "swift-crypto")
let x509: Target.Dependency = .product(name: "X509", package: "swift-certificates")
let swiftASN1: Target.Dependency = .product(name: "SwiftASN1", package: "swift-asn1")
let jwt: Target.Dependency = .product(name: "JWTKit", package: "jwt-kit")
let grdb: Target.Dependency = .product(name: "GRDB", package: "GRDB.swift")
let lifecycle: Target.Dependency = .product(name: "ServiceLifecycle", package: "swift-service-lifecycle")
let unixSignals: Target.Dependency = .product(name: "UnixSignals", package: "swift-service-lifecycle")
let hummingbird: Target.Dependency = .product(name: "Hummingbird", package: "hummingbird")
let hummingbirdCore: Target.Dependency = .product(name: "HummingbirdCore", package: "hummingbird")
let httpTypes: Target.Dependency = .product(name: "HTTPTypes", package: "swift-http-types")
let yams: Target.Dependency = .product(name: "Yams", package: "Yams")
let arguments: Target.Dependency = .product(name: "ArgumentParser", package: "swift-argument-parser")

func layer(
    _ layer: String, _ name: String, _ dependencies: [Target.Dependency]
) -> Target {
    .target(name: name, dependencies: dependencies, path: "Sources/\(layer)/\(name)", swiftSettings: apusSettings)
}

func test(_ name: String, _ dependencies: [Target.Dependency], exclude: [String] = []) -> Target {
    .testTarget(
        name: name, dependencies: dependencies, path: "Tests/\(name)", exclude: exclude, swiftSettings: apusSettings)
}

let package = Package(
    name: "apus",
    products: [
        .executable(name: "apus", targets: ["apus"]),
        .executable(name: "apus-bench", targets: ["apus-bench"]),
        .library(name: "ApusClient", targets: ["ApusClient"]),
        .library(name: "ApusDevice", targets: ["ApusDevice"]),
    ],
    dependencies: [
        .package(url: "https://github.com/apple/swift-argument-parser", exact: "1.8.2"),
        .package(url: "https://github.com/apple/swift-asn1", exact: "1.7.4"),
        .package(url: "https://github.com/apple/swift-certificates", exact: "1.21.1"),
        .package(url: "https://github.com/apple/swift-collections", exact: "1.6.0"),
        .package(url: "https://github.com/apple/swift-crypto", exact: "4.5.2"),
        .package(url: "https://github.com/apple/swift-distributed-tracing", exact: "1.7.3"),
        .package(url: "https://github.com/apple/swift-http-types", exact: "1.8.0"),
        .package(url: "https://github.com/apple/swift-log", exact: "1.16.2"),
        .package(url: "https://github.com/apple/swift-metrics", exact: "2.13.0"),
        .package(url: "https://github.com/apple/swift-nio", exact: "2.101.2"),
        .package(url: "https://github.com/apple/swift-nio-extras", exact: "1.35.2"),
        .package(url: "https://github.com/apple/swift-nio-ssl", exact: "2.37.6"),
        .package(url: "https://github.com/apple/swift-protobuf", exact: "1.39.0"),
        .package(url: "https://github.com/groue/GRDB.swift", exact: "7.10.0"),
        .package(url: "https://github.com/hummingbird-project/hummingbird", exact: "2.28.1", traits: []),
        .package(url: "https://github.com/jpsim/Yams", exact: "6.2.2"),
        .package(url: "https://github.com/swift-server/swift-service-lifecycle", exact: "2.13.0"),
        .package(url: "https://github.com/vapor/jwt-kit", exact: "5.7.1"),
    ],
    targets: [
        // Core: values only.
        layer("Core", "ApusCore", [log, coreMetrics]),

        // Native: module maps, thin C shims, and threads beside the Swift pool.
        .target(name: "CApusMemory", path: "Sources/Native/CApusMemory"),
        .target(name: "CApusThreads", path: "Sources/Native/CApusThreads"),
        layer("Native", "ApusThreads", ["ApusCore", "CApusThreads"]),
        .systemLibrary(
            name: "CLibAV", path: "Sources/Native/CLibAV", pkgConfig: "libavformat libavcodec libavutil libswscale",
            providers: [.apt(["libavcodec-dev", "libavformat-dev", "libavutil-dev", "libswscale-dev"])]),
        .target(name: "CApusMedia", dependencies: ["CLibAV"], path: "Sources/Native/CApusMedia"),
        .systemLibrary(
            name: "CApusZstd", path: "Sources/Native/CApusZstd", pkgConfig: "libzstd",
            providers: [.apt(["libzstd-dev"])]),
        .target(
            name: "CApusTLS", path: "Sources/Native/CApusTLS",
            linkerSettings: [.linkedLibrary("ssl"), .linkedLibrary("crypto")]),
        layer("Native", "ApusTLS", ["ApusCore", "CApusTLS", nioCore, crypto]),
        .systemLibrary(
            name: "CApusPQ", path: "Sources/Native/CApusPQ", pkgConfig: "libpq", providers: [.apt(["libpq-dev"])]),
        layer("Native", "ApusPQ", ["ApusCore", "CApusPQ"]),
        .target(name: "CApusNet", path: "Sources/Native/CApusNet"),

        // Protocol: codecs and machines, no I/O.
        layer("Protocol", "ApusWire", ["ApusCore", nioCore, protobuf]),
        layer("Protocol", "ApusContract", ["ApusCore", "ApusWire", protobuf]),
        layer("Protocol", "ApusMedia", ["ApusCore", nioCore, dequeModule]),
        layer("Protocol", "ApusTraversal", ["ApusCore", crypto]),

        // Engine: listeners, links between nodes, storage, cluster.
        layer("Engine", "ApusTracing", ["ApusCore", dequeModule, tracing]),
        layer("Engine", "ApusListener", ["ApusCore", nioCore, log, coreMetrics]),
        layer(
            "Engine", "ApusTransport",
            [
                "ApusCore", "ApusTracing", "ApusListener", "ApusWire", "ApusThreads", "CApusNet", "CApusThreads",
                "CApusZstd", nioCore,
                nioPosix,
                nioTLS,
                nioSSL, x509, swiftASN1, crypto, log, coreMetrics,
            ]),
        layer(
            "Engine", "ApusStorage",
            ["ApusCore", "ApusListener", "ApusPQ", grdb, protobuf, crypto, dequeModule, log, coreMetrics]),
        layer(
            "Engine", "ApusCluster",
            [
                "ApusCore", "ApusTracing", "ApusWire", "ApusTransport", "ApusStorage", nioCore, protobuf,
                orderedCollections, dequeModule, lifecycle, log, coreMetrics,
            ]),

        // Services: machine + actor each.
        layer(
            "Services", "ApusSessions",
            [
                "ApusCore", "ApusWire", "ApusContract", "ApusStorage", "ApusTransport", "ApusCluster",
                protobuf, dequeModule,
                crypto, jwt, lifecycle, log, coreMetrics,
            ]),
        layer(
            "Services", "ApusChannels",
            [
                "ApusCore", "ApusWire", "ApusMedia", "ApusTransport", "ApusCluster",
                "CApusMemory", nioCore, protobuf, dequeModule, log, coreMetrics,
            ]),

        layer(
            "Services", "ApusClientAPI",
            [
                "ApusCore", "ApusTracing", "ApusThreads", "ApusWire", "ApusContract", "ApusTransport", "ApusStorage",
                "ApusCluster", "ApusSessions", nioCore, protobuf, orderedCollections, dequeModule, lifecycle, log,
                coreMetrics,
            ]),

        // Edges: sockets for devices, apps and operators.
        layer(
            "Edges", "ApusGateway",
            [
                "ApusCore", "ApusListener", "ApusWire", "ApusContract", "ApusMedia", "ApusTransport", "ApusCluster",
                "ApusSessions",
                "ApusChannels", "ApusClientAPI", "CApusMemory", "ApusTLS", nioCore, nioPosix, protobuf, lifecycle, log,
                coreMetrics,
            ]),
        layer(
            "Edges", "ApusHTTP",
            [
                "ApusCore", "ApusListener", "ApusContract", "ApusTransport", "ApusCluster", "ApusSessions",
                "ApusClientAPI", hummingbird, hummingbirdCore, httpTypes, nioCore, nioPosix, nioHTTP1, nioSSL,
                nioWebSocket, nioHTTPTypes, nioHTTPTypesHTTP1, protobuf, crypto, lifecycle, log, coreMetrics,
            ]),

        layer(
            "Edges", "ApusRelay",
            ["ApusCore", "ApusThreads", "ApusTraversal", "CApusNet", "CApusTLS", dequeModule, log, coreMetrics]),

        // Node: the only place that joins the parts.
        layer(
            "Node", "ApusNode",
            [
                "ApusCore", "ApusTracing", "ApusListener", "ApusWire", "ApusContract", "ApusMedia", "ApusTransport",
                "ApusStorage", "ApusCluster",
                "ApusSessions", "ApusChannels", "ApusClientAPI", "ApusGateway", "ApusHTTP", "ApusTraversal",
                "ApusRelay", "ApusTLS",
                nioCore,
                nioPosix, nioHTTP1, lifecycle, unixSignals, yams, protobuf, crypto, log, coreMetrics,
            ]),

        // Clients: never a server target.
        layer(
            "Clients", "ApusClient",
            [
                "ApusCore", "ApusThreads", "ApusTLS", "ApusWire", "ApusContract", "ApusMedia", "CApusMedia", nioCore,
                nioPosix,
                nioTLS, protobuf, crypto,
                dequeModule, log,
            ]),
        layer(
            "Clients", "ApusDevice",
            [
                "ApusCore", "ApusThreads", "ApusMedia", "ApusClient", "CApusMedia", nioCore,
                dequeModule,
                log,
            ]),

        // Command: local clusters and their processes, the verbs, and the binaries that have them.
        layer(
            "Command", "ApusLocal",
            [
                "ApusCore", "ApusSessions", "ApusTransport", "ApusTraversal", "ApusNode", "CApusTLS", nioCore, nioPosix,
                nioHTTP1, nioSSL, nioFoundationCompat, crypto,
            ]),
        layer(
            "Command", "ApusCommand",
            [
                "ApusCore", "ApusContract", "ApusMedia", "ApusStorage", "ApusCluster", "ApusSessions", "ApusNode",
                "ApusClient", "ApusDevice", "ApusTraversal", "ApusLocal", "CApusThreads", nioCore, nioPosix, nioHTTP1,
                nioSSL, nioFoundationCompat, protobuf, unixSignals, log, coreMetrics, arguments,
            ]),
        .executableTarget(
            name: "apus", dependencies: ["ApusCommand"], path: "Sources/Command/apus", swiftSettings: apusSettings),
        layer(
            "Command", "ApusBench",
            [
                "ApusCore", "ApusWire", "ApusContract", "ApusMedia", "ApusTraversal", "ApusThreads", "ApusTransport",
                "ApusStorage", "ApusCluster", "ApusSessions", "ApusClient", "ApusLocal", nioCore, nioPosix, nioHTTP1,
                nioWebSocket, nioFoundationCompat, hummingbird, httpTypes, protobuf, unixSignals, log, arguments,
            ]),
        .executableTarget(
            name: "apus-bench", dependencies: ["ApusBench"], path: "Sources/Command/apus-bench",
            swiftSettings: apusSettings),

        // Examples: services of others, each in a binary of its own.
        .executableTarget(
            name: "apus-doors",
            dependencies: [
                "ApusCore", "ApusWire", "ApusContract", "ApusStorage", "ApusCluster", "ApusClientAPI", "ApusNode",
                "ApusCommand", protobuf,
            ],
            path: "Examples/Doors", exclude: ["pass"], swiftSettings: apusSettings),

        // Testing.
        layer("Testing", "ApusTestKit", ["ApusCore", nioCore, nioPosix, nioHTTP1]),
        layer(
            "Testing", "ApusSimulation",
            ["ApusCore", "ApusWire", "ApusStorage", "ApusCluster", nioCore, dequeModule, protobuf]),
        .target(
            name: "CApusTestTLS", path: "Sources/Testing/CApusTestTLS",
            linkerSettings: [.linkedLibrary("ssl"), .linkedLibrary("crypto")]),

        test(
            "ApusRelayTests",
            ["ApusCore", "ApusThreads", "ApusTraversal", "ApusRelay", "ApusTestKit", "CApusTLS", log]),
        test("ApusCoreTests", ["ApusCore", coreMetrics, log]),
        test(
            "ApusClientAPITests",
            [
                "ApusCore", "ApusTracing", "ApusThreads", "ApusContract", "ApusSessions", "ApusClientAPI", tracing,
                nioCore, nioPosix, protobuf, log,
            ]),
        test(
            "ApusHTTPTests",
            [
                "ApusCore", "ApusContract", "ApusSessions", "ApusClientAPI", "ApusHTTP", protobuf, nioCore, nioPosix,
                lifecycle, log,
            ]),
        test("ApusTracingTests", ["ApusCore", "ApusTracing", tracing]),
        test("ApusListenerTests", ["ApusCore", "ApusListener", "ApusTestKit", nioCore, nioPosix, log]),
        test(
            "ApusSessionsTests",
            [
                "ApusCore", "ApusWire", "ApusContract", "ApusStorage", "ApusTransport", "ApusCluster", "ApusSessions",
                "ApusTestKit", nioPosix, crypto, jwt, protobuf, log,
            ], exclude: ["Fixtures"]),
        test(
            "ApusGatewayTests",
            [
                "ApusCore", "ApusWire", "ApusMedia", "ApusTransport", "ApusGateway", "ApusTLS", "ApusClient",
                "ApusTestKit",
                nioCore, nioPosix, nioSSL,
            ]),
        test(
            "ApusNodeTests",
            [
                "ApusCore", "ApusWire", "ApusTransport", "ApusGateway", "ApusHTTP", "ApusTraversal", "ApusRelay",
                "ApusTracing", "ApusNode", "ApusTestKit", nioCore, nioPosix, protobuf, log,
            ]),
        test(
            "ClusterTests",
            [
                "ApusCore", "ApusStorage", "ApusSessions", "ApusContract", "ApusMedia", "ApusClient", "ApusTestKit",
                "ApusTraversal", log, nioCore, nioPosix, nioSSL, protobuf,
            ]),
        .testTarget(
            name: "RelayClientTests", dependencies: ["ApusTestKit", nioCore, nioPosix],
            path: "Tests/RelayClientTests", exclude: ["Clients"], swiftSettings: apusSettings),
        test("TidyTests", ["ApusCore", "ApusNode"]),
        test("ApusWireTests", ["ApusCore", "ApusWire", "ApusTestKit", nioCore]),
        test(
            "ApusClusterTests",
            [
                "ApusCore", "ApusTracing", "ApusWire", "ApusStorage", "ApusTransport", "ApusCluster", "ApusTestKit",
                nioCore, nioPosix, protobuf, log,
            ]),
        test("SimulationTests", ["ApusCore", "ApusSimulation"]),
        .testTarget(
            name: "FuzzTests",
            dependencies: [
                "ApusCore", "ApusWire", "ApusContract", "ApusMedia", "ApusTraversal", "ApusRelay", "ApusSessions",
                "ApusTransport", "ApusTLS", "ApusCluster", "ApusChannels", "ApusClientAPI", "ApusGateway", "ApusHTTP",
                "ApusNode",
                "CApusTLS", "CApusTestTLS", hummingbird, hummingbirdCore, httpTypes, nioCore, nioEmbedded, nioHTTP1,
                protobuf,
                crypto, log,
            ],
            path: "Tests/Fuzz", exclude: ["Entry.swift", "Corpus", "Crashes"], swiftSettings: apusSettings),
        test("ApusStorageTests", ["ApusCore", "ApusPQ", "ApusStorage", "ApusTestKit", grdb, protobuf, log]),
        test(
            "ApusChannelsTests",
            [
                "ApusCore", "ApusWire", "ApusMedia", "ApusTransport", "ApusCluster", "ApusChannels", "ApusTestKit",
                nioCore, nioPosix, protobuf, log,
            ]),
        test("ApusMediaTests", ["ApusCore", "ApusMedia", "ApusTestKit", nioCore]),
        test("ApusTraversalTests", ["ApusCore", "ApusTraversal"]),
        test(
            "ApusTransportTests",
            [
                "ApusCore", "ApusTracing", "ApusWire", "ApusTransport", "ApusTestKit", nioCore, nioPosix, nioSSL,
                protobuf, log,
            ]),
        test(
            "ApusClientTests",
            [
                "ApusCore", "ApusMedia", "ApusSessions", "ApusClient", "ApusDevice", "ApusTestKit", nioCore, crypto,
                log,
            ]),
        test(
            "ApusDeviceTests",
            [
                "ApusCore", "ApusThreads", "ApusMedia", "ApusClient", "ApusDevice", "ApusTestKit", nioCore,
                log,
            ]),
    ]
)
