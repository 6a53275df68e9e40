// swift-tools-version: 6.2
import PackageDescription

// An app in a package of its own, as its developers would have it: scripts/try-sdk builds and runs it.
let package = Package(
    name: "app",
    dependencies: [
        // In an app of your own: `.package(url:from:)`, with the address of the repository.
        .package(name: "apus", path: "../.."),
        .package(name: "Newer", path: "Newer"),
    ],
    targets: [
        .executableTarget(
            name: "presence",
            dependencies: [
                .product(name: "ApusClient", package: "apus"),
                .product(name: "Newer", package: "Newer"),
            ],
            path: "Sources", swiftSettings: [.treatAllWarnings(as: .error)])
    ]
)
