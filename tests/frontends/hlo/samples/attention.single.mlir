module @jit_single attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x4x4xf32>, %arg1: tensor<4x4x8xf32>, %arg2: tensor<8x4x4xf32>, %arg3: tensor<8x4x4xf32>, %arg4: tensor<2x8x8xf32>, %arg5: tensor<2x8x8xf32>) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<8x4x4xf32> {jax.result_info = "result[1]['k']"}, tensor<4x4x8xf32> {jax.result_info = "result[1]['o']"}, tensor<8x4x4xf32> {jax.result_info = "result[1]['q']"}, tensor<8x4x4xf32> {jax.result_info = "result[1]['v']"}) {
    %0 = stablehlo.dot_general %arg2, %arg4, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x4x4xf32>, tensor<2x8x8xf32>) -> tensor<4x4x2x8xf32>
    %1 = stablehlo.transpose %0, dims = [2, 0, 3, 1] : (tensor<4x4x2x8xf32>) -> tensor<2x4x8x4xf32>
    %2 = stablehlo.dot_general %arg0, %arg4, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x4x4xf32>, tensor<2x8x8xf32>) -> tensor<4x4x2x8xf32>
    %3 = stablehlo.transpose %2, dims = [2, 0, 3, 1] : (tensor<4x4x2x8xf32>) -> tensor<2x4x8x4xf32>
    %4 = stablehlo.dot_general %arg3, %arg4, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x4x4xf32>, tensor<2x8x8xf32>) -> tensor<4x4x2x8xf32>
    %5 = stablehlo.transpose %4, dims = [2, 0, 3, 1] : (tensor<4x4x2x8xf32>) -> tensor<2x4x8x4xf32>
    %6 = stablehlo.dot_general %1, %3, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x8xf32>
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4x8x8xf32>
    %8 = stablehlo.multiply %6, %7 : tensor<2x4x8x8xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %9 = stablehlo.reduce(%8 init: %cst_0) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %10 = stablehlo.reshape %9 : (tensor<2x4x8xf32>) -> tensor<2x4x8x1xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2, 3] : (tensor<2x4x8x1xf32>) -> tensor<2x4x8x8xf32>
    %12 = stablehlo.compare EQ, %8, %11, FLOAT : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xi1>
    %13 = stablehlo.convert %12 : (tensor<2x4x8x8xi1>) -> tensor<2x4x8x8xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %14 = stablehlo.reduce(%13 init: %cst_1) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %cst_2 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %16 = stablehlo.maximum %15, %9 : tensor<2x4x8xf32>
    %17 = stablehlo.compare EQ, %9, %16, FLOAT : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xi1>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %20 = stablehlo.select %17, %18, %19 : tensor<2x4x8xi1>, tensor<2x4x8xf32>
    %cst_5 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %22 = stablehlo.compare EQ, %21, %16, FLOAT : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xi1>
    %cst_6 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %cst_7 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %24 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %25 = stablehlo.select %22, %23, %24 : tensor<2x4x8xi1>, tensor<2x4x8xf32>
    %26 = stablehlo.divide %20, %25 : tensor<2x4x8xf32>
    %27 = stablehlo.broadcast_in_dim %16, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x1xf32>
    %28 = stablehlo.broadcast_in_dim %27, dims = [0, 1, 2, 3] : (tensor<2x4x8x1xf32>) -> tensor<2x4x8x8xf32>
    %29 = stablehlo.subtract %8, %28 : tensor<2x4x8x8xf32>
    %30 = stablehlo.exponential %29 : tensor<2x4x8x8xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %31 = stablehlo.reduce(%30 init: %cst_8) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %32 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x1xf32>
    %33 = stablehlo.broadcast_in_dim %32, dims = [0, 1, 2, 3] : (tensor<2x4x8x1xf32>) -> tensor<2x4x8x8xf32>
    %34 = stablehlo.divide %30, %33 : tensor<2x4x8x8xf32>
    %35 = stablehlo.multiply %32, %32 : tensor<2x4x8x1xf32>
    %cst_9 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<2x4x8x1xf32>
    %37 = stablehlo.divide %36, %35 : tensor<2x4x8x1xf32>
    %38 = stablehlo.dot_general %34, %5, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8x8xf32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x4xf32>
    %39 = stablehlo.dot_general %38, %arg1, contracting_dims = [3, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8x4xf32>, tensor<4x4x8xf32>) -> tensor<2x8x8xf32>
    %40 = stablehlo.add %arg4, %39 : tensor<2x8x8xf32>
    %41 = stablehlo.subtract %40, %arg5 : tensor<2x8x8xf32>
    %42 = stablehlo.multiply %41, %41 : tensor<2x8x8xf32>
    %cst_10 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %43 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<2x8x8xf32>
    %44 = stablehlo.multiply %43, %41 : tensor<2x8x8xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %45 = stablehlo.reduce(%42 init: %cst_11) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_12 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %46 = stablehlo.divide %45, %cst_12 : tensor<f32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_14 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %47 = stablehlo.divide %cst_13, %cst_14 : tensor<f32>
    %48 = stablehlo.broadcast_in_dim %47, dims = [] : (tensor<f32>) -> tensor<2x8x8xf32>
    %49 = stablehlo.multiply %48, %44 : tensor<2x8x8xf32>
    %50 = stablehlo.dot_general %49, %38, contracting_dims = [0, 1] x [0, 2], precision = [DEFAULT, DEFAULT] : (tensor<2x8x8xf32>, tensor<2x4x8x4xf32>) -> tensor<8x4x4xf32>
    %51 = stablehlo.transpose %50, dims = [1, 2, 0] : (tensor<8x4x4xf32>) -> tensor<4x4x8xf32>
    %52 = stablehlo.dot_general %49, %arg1, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x8x8xf32>, tensor<4x4x8xf32>) -> tensor<2x8x4x4xf32>
    %53 = stablehlo.transpose %52, dims = [0, 2, 1, 3] : (tensor<2x8x4x4xf32>) -> tensor<2x4x8x4xf32>
    %54 = stablehlo.dot_general %53, %34, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8x4xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x4x8xf32>
    %55 = stablehlo.transpose %54, dims = [0, 1, 3, 2] : (tensor<2x4x4x8xf32>) -> tensor<2x4x8x4xf32>
    %56 = stablehlo.dot_general %53, %5, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8x4xf32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x8xf32>
    %57 = stablehlo.broadcast_in_dim %37, dims = [0, 1, 2, 3] : (tensor<2x4x8x1xf32>) -> tensor<2x4x8x8xf32>
    %58 = stablehlo.multiply %56, %57 : tensor<2x4x8x8xf32>
    %59 = stablehlo.multiply %58, %30 : tensor<2x4x8x8xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %60 = stablehlo.reduce(%59 init: %cst_15) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %61 = stablehlo.reshape %60 : (tensor<2x4x8xf32>) -> tensor<2x4x8x1xf32>
    %62 = stablehlo.negate %61 : tensor<2x4x8x1xf32>
    %63 = stablehlo.broadcast_in_dim %32, dims = [0, 1, 2, 3] : (tensor<2x4x8x1xf32>) -> tensor<2x4x8x8xf32>
    %64 = stablehlo.divide %56, %63 : tensor<2x4x8x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %65 = stablehlo.reduce(%62 init: %cst_16) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x1xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %66 = stablehlo.broadcast_in_dim %65, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %67 = stablehlo.add %64, %66 : tensor<2x4x8x8xf32>
    %68 = stablehlo.multiply %67, %30 : tensor<2x4x8x8xf32>
    %cst_17 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %69 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<2x4x8x8xf32>
    %70 = stablehlo.multiply %68, %69 : tensor<2x4x8x8xf32>
    %71 = stablehlo.dot_general %70, %1, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8x8xf32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x4xf32>
    %72 = stablehlo.dot_general %70, %3, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8x8xf32>, tensor<2x4x8x4xf32>) -> tensor<2x4x8x4xf32>
    %73 = stablehlo.transpose %55, dims = [1, 3, 0, 2] : (tensor<2x4x8x4xf32>) -> tensor<4x4x2x8xf32>
    %74 = stablehlo.dot_general %73, %arg4, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x2x8xf32>, tensor<2x8x8xf32>) -> tensor<4x4x8xf32>
    %75 = stablehlo.transpose %74, dims = [2, 0, 1] : (tensor<4x4x8xf32>) -> tensor<8x4x4xf32>
    %76 = stablehlo.transpose %71, dims = [1, 3, 0, 2] : (tensor<2x4x8x4xf32>) -> tensor<4x4x2x8xf32>
    %77 = stablehlo.dot_general %76, %arg4, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x2x8xf32>, tensor<2x8x8xf32>) -> tensor<4x4x8xf32>
    %78 = stablehlo.transpose %77, dims = [2, 0, 1] : (tensor<4x4x8xf32>) -> tensor<8x4x4xf32>
    %79 = stablehlo.transpose %72, dims = [1, 3, 0, 2] : (tensor<2x4x8x4xf32>) -> tensor<4x4x2x8xf32>
    %80 = stablehlo.dot_general %79, %arg4, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x2x8xf32>, tensor<2x8x8xf32>) -> tensor<4x4x8xf32>
    %81 = stablehlo.transpose %80, dims = [2, 0, 1] : (tensor<4x4x8xf32>) -> tensor<8x4x4xf32>
    return %46, %78, %51, %81, %75 : tensor<f32>, tensor<8x4x4xf32>, tensor<4x4x8xf32>, tensor<8x4x4xf32>, tensor<8x4x4xf32>
  }
}
